//! Bundles that are applied and deleted, by one person and by many at once.

use greenroom_sdk::types::stream::StreamEvent;

use crate::harness::{Ran, Up, sleeping, temp};

#[test]
fn what_is_applied_unchanged_makes_no_revision() {
    let folder = temp();
    let up = Up::start(&folder, &["--workers", "1"]);
    up.file("tale.yaml", sleeping("tale", &["a"]));
    let apply = || up.run(&["apply", "-f", "tale.yaml", "--json"]).ok().json();
    let told = apply();
    assert_eq!(
        (&told["action"], &told["revision"]),
        (&"created".into(), &1.into())
    );
    for _ in 0..2 {
        let told = apply();
        assert_eq!(
            (&told["action"], &told["revision"]),
            (&"unchanged".into(), &1.into())
        );
        assert_eq!(told["jobs"], serde_json::json!(["tale.0.a"]));
    }
    let about = format!("description: of old\n{}", sleeping("tale", &["a"]));
    up.file("tale.yaml", about);
    let told = apply();
    assert_eq!(
        (&told["action"], &told["revision"]),
        (&"updated".into(), &2.into())
    );
    up.end();
}

#[test]
fn people_who_apply_and_delete_one_bundle_at_once_are_told_sensible_things() {
    let folder = temp();
    let up = Up::start(&folder, &["--workers", "1"]);
    up.file("tale.yaml", sleeping("tale", &["a"]));
    let race = |args: &[&str]| -> Vec<Ran> { (0..4).map(|_| up.run(args)).collect() };
    let (applied, deleted) = std::thread::scope(|scope| {
        let spawn = |args: &'static [&'static str]| -> Vec<_> {
            (0..5).map(|_| scope.spawn(|| race(args))).collect()
        };
        let (applies, deletes) = (
            spawn(&["apply", "-f", "tale.yaml"]),
            spawn(&["delete", "tale"]),
        );
        let join = |threads: Vec<std::thread::ScopedJoinHandle<'_, Vec<Ran>>>| -> Vec<Ran> {
            threads
                .into_iter()
                .flat_map(|it| it.join().unwrap())
                .collect()
        };
        (join(applies), join(deletes))
    });
    for ran in applied {
        ran.ok();
    }
    for ran in deleted {
        match ran.code {
            0 => {}
            _ => drop(ran.refused(1, &["there is no bundle tale; nothing was deleted"])),
        }
    }
    // One after the other: what is deleted is there again at once.
    for _ in 0..5 {
        up.run(&["apply", "-f", "tale.yaml"]).ok();
        up.run(&["delete", "tale"]).ok();
    }
    up.run(&["apply", "-f", "tale.yaml", "--wait"]).ok();
    assert_eq!(up.job("tale.0.a")["instance"], "running");
    up.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_its_worker_starts_again_and_again_does_not_count_as_running() {
    let folder = temp();
    let up = Up::start(&folder, &["--workers", "1"]);
    up.file("bad.sh", "echo oops\nexit 3\n");
    let command = format!("command: sh {}/bad.sh", up.folder.display());
    let again = "\n          restart: always\n          restartCount: 50";
    let bad = sleeping("tale", &["a"]).replace("command: sleep 1000", &(command + again));
    up.file("tale.yaml", bad);
    let mut watch = up.watch().await;
    let ran = up.run(&[
        "apply",
        "-f",
        "tale.yaml",
        "--wait",
        "--timeout",
        "5s",
        "--json",
    ]);
    assert_eq!(ran.code, 1, "{ran:#?}");
    let told = ran.json_lines();
    assert_eq!(told[0]["action"], "created");
    assert_eq!(told[1]["error"]["reason"], "not_running");
    let ran = ran.says(&[
        "tale.0.a is restarting: service main ended with exit code 3",
        "not running after 5s: tale.0.a (restarted ",
    ]);
    assert!(!ran.stderr.contains("1/1 running"), "{ran:#?}");
    watch
        .until("its restart", |event| match event {
            StreamEvent::JobInfo(_) => Some(()),
            _ => None,
        })
        .await;
    let row = up.job("tale.0.a");
    assert_eq!(row["instance"], "running", "{row}");
    assert!(row["restarts"]["count"].as_u64().unwrap() > 0, "{row}");
    let list = up.run(&["get", "jobs"]).ok().stdout;
    assert!(
        list.contains("running, restarted ") && list.contains("last exit code 3"),
        "{list}"
    );
    let told = up.run(&["describe", "job", "tale.0.a"]).ok().stdout;
    assert!(told.contains("restarts  service main restarted "), "{told}");
    let told = up.run(&["why", "tale.0.a"]).ok().stdout;
    assert!(
        told.contains("Its worker started its services again "),
        "{told}"
    );
    up.end();
}

#[test]
fn a_wait_says_what_it_did_not_wait_for_and_why() {
    let folder = temp();
    let up = Up::start(&folder, &["--workers", "1"]);
    let with = |id: &str, keys: &str| {
        let text = sleeping(id, &["a"]);
        up.file(&format!("{id}.yaml"), format!("{keys}{text}"));
        up.run(&[
            "apply",
            "-f",
            &format!("{id}.yaml"),
            "--wait",
            "--timeout",
            "60s",
        ])
    };
    let far = with("far", "startDateTime: 2100-01-01T00:00:00Z\n").ok();
    far.says(&[
        "not waited for: far.0.a: it starts at 2100-01-01T00:00:00Z, which is beyond this wait",
    ]);
    let past = "startDateTime: 2020-01-01T00:00:00Z\nstopAt: 2021-01-01T00:00:00Z\n";
    let past = with("past", past);
    let wanted = "not waited for: past.0.a: the stop time 2021-01-01T00:00:00Z is over";
    assert_eq!(past.code, 1, "{past:#?}");
    past.says(&[wanted, "some jobs do not run and will not"]);
    let soon = with("soon", "startDateTime: 2020-01-01T00:00:00Z\n").ok();
    soon.says(&["1/1 running: soon.0.a"]);
    up.end();
}
