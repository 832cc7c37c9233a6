//! What containers may reach of the cloud that their node runs in.

use std::process::Command;

use crate::common::{FakeManager, WorkerProcess, job};
use crate::{Scene, host, shell};

/// Another network beyond this host, with a metadata service in it.
struct Cloud {
    name: String,
    address: String,
    service: std::process::Child,
}

impl Cloud {
    fn start() -> Self {
        let number = std::process::id();
        let (third, fourth) = (number / 64 % 256, number % 64 * 4);
        let at = |last: u32| format!("10.213.{third}.{}", fourth + last);
        let (name, address) = (format!("grt{number}"), at(2));
        host(&format!("ip netns add {name}"));
        host(&format!(
            "ip link add {name}h type veth peer name {name}n netns {name}"
        ));
        host(&format!("ip addr add {}/30 dev {name}h", at(1)));
        host(&format!("ip link set {name}h up"));
        host(&format!("ip -n {name} addr add {address}/30 dev {name}n"));
        host(&format!("ip -n {name} link set {name}n up"));
        host(&format!("ip -n {name} route add default via {}", at(1)));
        let script = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../tests/doubles/imds_double.py"
        );
        let mut service = Command::new("ip")
            .args(["netns", "exec", &name, "python3", script, &address, "80"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut port = String::new();
        let mut said = std::io::BufReader::new(service.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut said, &mut port).unwrap();
        assert_eq!(port.trim(), "80");
        Self {
            name,
            address,
            service,
        }
    }

    /// How often our rule for the address stands in the engine's chain.
    fn rules(&self) -> usize {
        let listed = Command::new("iptables")
            .args(["--wait", "5", "--list-rules", "DOCKER-USER"])
            .output();
        let text = String::from_utf8(listed.unwrap().stdout).unwrap();
        text.lines()
            .filter(|line| line.contains(&self.address))
            .count()
    }
}

impl Drop for Cloud {
    fn drop(&mut self) {
        let _ = self.service.kill();
        let _ = self.service.wait();
        let rule = format!("-d {}/32 -i gr-+ -j REJECT", self.address);
        for line in [
            format!("iptables --wait 5 -D DOCKER-USER {rule}"),
            format!("ip link del {}h", self.name),
            format!("ip netns del {}", self.name),
        ] {
            let mut words = line.split(' ');
            let _ = Command::new(words.next().unwrap()).args(words).status();
        }
    }
}

// spec: WORK-51
#[tokio::test]
async fn jobs_do_not_reach_the_metadata_service_unless_they_are_let() {
    let cloud = Cloud::start();
    let dir = tempfile::tempdir().unwrap();
    let mut manager = FakeManager::start().await;
    let url = format!("http://{}", cloud.address);
    let lets = [
        ("TESTBIN_METADATA_URL", url.as_str()),
        ("TESTBIN_ALLOW_METADATA", "1"),
    ];
    let state = dir.path().join("state");
    let worker = WorkerProcess::spawn_with(&state, &manager, "docker", "2", &lets);
    let stream = manager.meet(1, 0).await;
    let mut scene = Scene {
        _dir: dir,
        manager,
        worker,
        stream,
    };
    let asking = || shell("a", &format!("echo | nc -w 5 {} 80", cloud.address));
    scene.stream.provision(job("j", "s1", vec![asking()])).await;
    let words = scene.stream.reports("s1", "completed").await;
    assert_eq!(words.last().unwrap(), "completed", "{words:?}");
    assert_eq!(cloud.rules(), 0);

    scene.worker.kill();
    scene.worker.start_again_with(&lets[..1]);
    scene.stream = scene.manager.meet(2, u64::MAX).await;
    scene.stream.provision(job("j", "s2", vec![asking()])).await;
    let words = scene.stream.reports("s2", "stopped").await;
    let failed = words.iter().find(|word| word.starts_with("failed"));
    assert!(
        failed.unwrap().starts_with("failed service a: exit code 1"),
        "{words:?}"
    );
    assert_eq!(cloud.rules(), 1);
    // Somebody loads the firewall anew: the next start has the rule again.
    host(&format!(
        "iptables --wait 5 -D DOCKER-USER -d {}/32 -i gr-+ -j REJECT",
        cloud.address
    ));
    scene.stream.provision(job("j", "s3", vec![asking()])).await;
    let words = scene.stream.reports("s3", "stopped").await;
    assert!(
        words
            .iter()
            .any(|word| word.starts_with("failed service a")),
        "{words:?}"
    );
    assert_eq!(cloud.rules(), 1);

    // A worker that cannot set the rule starts nothing that could reach the service.
    scene.worker.kill();
    let blind = [lets[0], ("PATH", "/nowhere")];
    scene.worker.start_again_with(&blind);
    scene.stream = scene.manager.meet(3, u64::MAX).await;
    scene.stream.provision(job("j", "s4", vec![asking()])).await;
    let words = scene.stream.reports("s4", "rejected").await;
    assert_eq!(words, ["accepted", "rejected JOB_REJECTED_RUNTIME"]);
    assert!(scene.is_gone("s4"));
}
