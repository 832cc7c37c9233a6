//! Goal: a flood of connections never takes the last descriptors. Method: the limit of this process
//! is set low, so it is a test program of its own, with this test alone.

use std::fs::File;

use futures::StreamExt as _;
use greenroom_tls::{Door, incoming, raise_descriptor_limit};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpStream};

// spec: LIM-10
#[tokio::test]
async fn connections_are_refused_while_descriptors_are_left_for_store_and_workers() {
    let all = getrlimit(Resource::Nofile);
    raise_descriptor_limit();
    assert_eq!(getrlimit(Resource::Nofile).current, all.maximum);
    let low = Rlimit {
        current: Some(300),
        ..all
    };
    setrlimit(Resource::Nofile, low).unwrap();

    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut doors = incoming(vec![Door {
        listener,
        tls: None,
        connections_max: 4_096,
    }]);
    // Both ends of each connection are this process's.
    let mut held = Vec::new();
    let refused = loop {
        let mut caller = TcpStream::connect(address).await.unwrap();
        let mut byte = [0];
        tokio::select! {
            taken = doors.next() => held.push((caller, taken.unwrap().unwrap())),
            read = caller.read(&mut byte) => {
                assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
                break caller;
            }
        }
        assert!(held.len() < 300, "none is refused");
    };
    assert!(held.len() > 50, "{}", held.len());
    // The refused caller's own end still counts; the door's does not.
    let files: Vec<File> = (0..60).map(|_| File::open("/dev/null").unwrap()).collect();
    drop((files, refused));

    // With room again, connections are taken again.
    held.truncate(10);
    let _again = TcpStream::connect(address).await.unwrap();
    doors.next().await.unwrap().unwrap();
}
