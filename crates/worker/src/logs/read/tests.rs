//! Logs that are read while they are written and change their files.

use super::*;
use crate::launch::LogLimits;
use crate::logs::LogFile;
use crate::logs::line::Output;

fn write(log: &mut LogFile, second: i64, text: &str) {
    let at = jiff::Timestamp::from_second(second).unwrap();
    log.write(format!("{at} stdout {text}\n").as_bytes())
        .unwrap();
}

/// A log whose files hold two lines each.
fn two_lines_each(dir: &Path, service: &str) -> LogFile {
    let limits = LogLimits {
        file_bytes: 70,
        files: 3,
    };
    LogFile::open(dir, service, limits).unwrap()
}

fn texts(batch: &Batch) -> Vec<&str> {
    batch.lines.iter().map(|(_, l)| l.text.as_str()).collect()
}

// spec: LOG-01, WORK-24
#[test]
fn everything_kept_is_read_in_order_and_a_tail_reaches_over_files() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = two_lines_each(dir.path(), "a");
    for n in 0..9 {
        write(&mut log, n, &format!("line{n}"));
    }
    let read = |tail| {
        let mut reader = Reader::open(dir.path(), "", tail, false).unwrap();
        let batch = reader.next_batch().unwrap();
        assert!(batch.is_last);
        texts(&batch).join(" ")
    };
    // Three files: 4 and 5, 6 and 7, 8.
    assert_eq!(read(None), "line4 line5 line6 line7 line8");
    assert_eq!(read(Some(100)), "line4 line5 line6 line7 line8");
    for (tail, expected) in [
        (0, ""),
        (1, "line8"),
        (2, "line7 line8"),
        (3, "line6 line7 line8"),
        (4, "line5 line6 line7 line8"),
    ] {
        assert_eq!(read(Some(tail)), expected);
    }
}

// spec: LOG-01
#[test]
fn a_follower_goes_over_to_new_files_and_stops_when_it_is_over() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = two_lines_each(dir.path(), "a");
    write(&mut log, 0, "old");
    let mut reader = Reader::open(dir.path(), "", Some(0), true).unwrap();
    let mut next = |expected: &[&str], is_last: bool| {
        let batch = reader.next_batch().unwrap();
        assert_eq!((texts(&batch), batch.is_last), (expected.to_vec(), is_last));
    };
    next(&[], false);
    write(&mut log, 1, "b");
    next(&["b"], false);
    // Three files on, none of them read yet.
    for n in 2..7 {
        write(&mut log, n, &n.to_string());
    }
    next(&["2", "3", "4", "5", "6"], false);
    // So far on that what was open is removed: its rest is read, then what is kept.
    for n in 7..20 {
        write(&mut log, n, &n.to_string());
    }
    next(&["7", "14", "15", "16", "17", "18", "19"], false);
    // The end of a line that was written in two pieces.
    log.write(b"1970-01-01T00:00:20Z stderr half").unwrap();
    next(&[], false);
    log.write(b" and half\nrest").unwrap();
    next(&["half and half"], false);
    std::fs::write(dir.path().join(ENDED_FILE), b"").unwrap();
    next(&["rest"], true);
}

// spec: LOG-01
#[test]
fn services_are_told_in_the_order_of_their_lines_and_one_can_be_chosen() {
    let dir = tempfile::tempdir().unwrap();
    let (mut a, mut b) = (
        LogFile::open(dir.path(), "a", LogLimits::default()).unwrap(),
        LogFile::open(dir.path(), "b", LogLimits::default()).unwrap(),
    );
    for n in 0..6 {
        write(if n % 2 == 0 { &mut a } else { &mut b }, n, &n.to_string());
    }
    let mut all = Reader::open(dir.path(), "", Some(2), true).unwrap();
    assert_eq!(texts(&all.next_batch().unwrap()), ["2", "3", "4", "5"]);
    let mut only = Reader::open(dir.path(), "b", None, false).unwrap();
    let batch = only.next_batch().unwrap();
    assert_eq!(texts(&batch), ["1", "3", "5"]);
    assert_eq!(batch.lines[0].1.output, Some(Output::Stdout));
    for wrong in ["c", "../a", "a.log"] {
        assert!(
            Reader::open(dir.path(), wrong, None, false)
                .unwrap()
                .is_empty()
        );
    }
    // A service that begins later is followed too.
    let mut c = LogFile::open(dir.path(), "c", LogLimits::default()).unwrap();
    write(&mut c, 7, "late");
    let batch = all.next_batch().unwrap();
    assert_eq!(batch.lines[0].0, "c");
}

// spec: LOG-01
#[test]
fn batches_are_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = LogFile::open(dir.path(), "a", LogLimits::default()).unwrap();
    for n in 0..300 {
        write(&mut log, n, "x");
    }
    for n in 300..340 {
        write(&mut log, n, &"y".repeat(10_000));
    }
    let mut reader = Reader::open(dir.path(), "a", None, false).unwrap();
    let sizes: Vec<(usize, bool)> = std::iter::from_fn(|| {
        let batch = reader.next_batch().unwrap();
        (!batch.lines.is_empty()).then_some((batch.lines.len(), batch.is_last))
    })
    .collect();
    assert_eq!(sizes, [(256, false), (44 + 27, false), (13, true)]);
}
