//! How many datagrams this machine dropped at one UDP socket because nobody read them in time.
//!
//! From the last column of `/proc/net/udp` and `udp6`, found by the socket's inode. Linux only;
//! elsewhere the number is unknown, which is not the same as 0.

use std::net::UdpSocket;

/// Where to look for one socket.
#[derive(Debug, Clone, Copy)]
pub(super) struct DropCounter {
    inode: u64,
    table: &'static str,
}

// === impl DropCounter ===

impl DropCounter {
    pub(super) fn new(socket: &UdpSocket) -> Option<Self> {
        let inode = rustix::fs::fstat(socket).ok()?.st_ino;
        let is_ipv4 = socket.local_addr().ok()?.is_ipv4();
        let table = if is_ipv4 {
            "/proc/net/udp"
        } else {
            "/proc/net/udp6"
        };
        Some(Self { inode, table })
    }

    pub(super) fn read(&self) -> Option<u64> {
        drops_in(&std::fs::read_to_string(self.table).ok()?, self.inode)
    }
}

fn drops_in(table: &str, inode: u64) -> Option<u64> {
    const INODE_COLUMN: usize = 9;
    table.lines().skip(1).find_map(|line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let found = columns.get(INODE_COLUMN)?.parse() == Ok(inode);
        if found {
            columns.last()?.parse().ok()
        } else {
            None
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    // spec: MEDIA-04
    #[test]
    fn the_sockets_own_line_is_read() {
        let table = "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops            \n\
 4286: 0100007F:D23F 00000000:0000 07 00000000:00001B00 00:00000000 00000000     0        0 11783 2 00000000694622ee 2997      \n\
 9461: 00000000:E676 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 11784 2 000000006a69de01 0         \n";
        assert_eq!(drops_in(table, 11_783), Some(2_997));
        assert_eq!(drops_in(table, 11_784), Some(0));
        assert_eq!(drops_in(table, 2_997), None);
    }

    // Goal: the column means what we take it for. Method: a small receive buffer that nobody reads.
    // spec: MEDIA-04
    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_buffer_is_counted() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        rustix::net::sockopt::set_socket_recv_buffer_size(&socket, 4_096).unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        let counter = DropCounter::new(&socket).unwrap();
        assert_eq!(counter.read(), Some(0));
        for _ in 0..100 {
            sender
                .send_to(&[0; 1_000], socket.local_addr().unwrap())
                .unwrap();
        }
        let mut received = 0;
        socket.set_nonblocking(true).unwrap();
        while socket.recv(&mut [0; 1_000]).is_ok() {
            received += 1;
        }
        assert!(received < 100);
        assert_eq!(counter.read(), Some(100 - received));
    }
}
