//! `greenroom store`: looking, copying beside a running Manager, putting back.

use serde_json::json;

use crate::harness::{Up, run, sleeping, temp};

// spec: STORE-05, STORE-10, EVT-16
#[tokio::test(flavor = "multi_thread")]
async fn a_backup_is_made_beside_a_running_manager_and_put_back_by_hand() {
    let folder = temp();
    let up = Up::start(&folder, &["--workers", "1"]);
    up.file("kept.yaml", sleeping("kept", &["a"]));
    up.file("later.yaml", sleeping("later", &["a"]));
    up.run(&["apply", "-f", "kept.yaml", "--wait"]).ok();
    let epoch = up.watch().await.initial().epoch.clone();
    let data = folder.path().join("data/manager");
    let data = data.to_str().unwrap();
    let copy = folder.path().join("copy.db");
    let copy = copy.to_str().unwrap();

    let held = run(&["store", "info", "--data-dir", data, "--json"]);
    let held = held.ok().json();
    assert_eq!(
        (held["generation"].clone(), held["backups"].clone()),
        (json!(1), json!([]))
    );
    let made = run(&["store", "backup", copy, "--data-dir", data, "--json"]);
    let made = made.ok().json();
    assert!(
        made["revision"].as_u64() >= held["revision"].as_u64(),
        "{made}"
    );
    run(&["store", "backup", copy, "--data-dir", data])
        .refused(2, &["copy.db is there already", "--replace"]);
    run(&["store", "backup", copy, "--replace", "--data-dir", data]).ok();
    let key = folder.path().join("data/manager/secrets.key");
    let before = std::fs::read(&key).unwrap();
    let key_name = key.to_str().unwrap();
    run(&["store", "backup", key_name, "--replace", "--data-dir", data])
        .refused(2, &["no backup is written", "data folder"]);
    assert_eq!(std::fs::read(&key).unwrap(), before);
    let mut bare = crate::harness::greenroom();
    bare.args(["store", "backup", "bare.db", "--data-dir", data]);
    crate::harness::finish(bare.current_dir(folder.path())).ok();
    assert!(folder.path().join("bare.db").exists());
    let regular = run(&["store", "backup", "--data-dir", data]).ok().stdout;
    assert!(regular.contains("/backups/state-"), "{regular}");
    let words = run(&["store", "info", "--data-dir", data]).ok().stdout;
    assert!(words.contains("backups     1, the newest "), "{words}");

    up.run(&["apply", "-f", "later.yaml", "--wait"]).ok();
    run(&["store", "restore", copy, "--data-dir", data]).refused(4, &["is in use by process"]);
    up.end();
    let put = run(&["store", "restore", copy, "--data-dir", data])
        .ok()
        .stdout;
    for words in ["generation 2", "is given up", "what was there is kept in"] {
        assert!(put.contains(words), "{put}");
    }

    let up = Up::start(&folder, &["--workers", "1"]);
    // Who followed the old course begins anew with a whole snapshot.
    assert_ne!(up.watch().await.initial().epoch, epoch);
    let bundles = up.run(&["get", "bundles", "--json"]).ok().json();
    let ids: Vec<_> = bundles
        .as_array()
        .unwrap()
        .iter()
        .map(|it| &it["bundle"]["bundleId"])
        .collect();
    assert_eq!(ids, ["kept"]);
    up.run(&["apply", "-f", "kept.yaml", "--wait"]).ok();
    up.end();
}

#[test]
fn what_is_no_store_or_no_backup_is_told_and_left_alone() {
    let folder = temp();
    let none = folder.path().join("none");
    let none = none.to_str().unwrap();
    for verb in ["info", "backup"] {
        run(&["store", verb, "--data-dir", none])
            .refused(7, &["there is no store in", "--data-dir"]);
    }
    let noise = folder.path().join("noise");
    std::fs::write(&noise, "no database").unwrap();
    let noise = noise.to_str().unwrap();
    run(&["store", "restore", noise, "--data-dir", none]).refused(8, &["noise cannot be read"]);
    assert!(!std::path::Path::new(none).exists());
}
