use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::json;

use super::*;

#[derive(Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Sample {
    #[serde(default)]
    replicas: u32,
    #[serde(default)]
    size: u64,
    #[serde(default)]
    share: f64,
    #[serde(default)]
    name: String,
    #[serde(default)]
    on: bool,
    #[serde(default)]
    list: Vec<Inner>,
    #[serde(default)]
    map: BTreeMap<String, i32>,
    #[serde(default)]
    pair: Option<(u32, u32)>,
    #[serde(default)]
    choice: Option<Sort>,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Inner {
    id: String,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Sort {
    Plain,
    Image(String),
    Program { command: Vec<String> },
}

fn told(tree: Value) -> String {
    read::<Sample>(&tree).unwrap_err().to_string()
}

/// What is read takes two and would leave the rest of the list unread, without a word.
#[test]
fn a_pair_has_two() {
    assert_eq!(
        told(json!({"pair": [1, 2, 3]})),
        "pair: expected a list of 2, found 3"
    );
    assert_eq!(
        told(json!({"pair": [1]})),
        "pair: expected a list of 2, found 1"
    );
    let read = read::<Sample>(&json!({"pair": [1, 2]})).unwrap();
    assert_eq!(read.pair, Some((1, 2)));
}

#[test]
fn every_kind_of_fault_is_told_in_plain_words_at_its_key() {
    for (tree, words) in [
        (
            json!({"replicas": "two"}),
            "replicas: expected a whole number, found text \"two\"",
        ),
        (
            json!({"replicas": 1.5}),
            "replicas: expected a whole number, found 1.5",
        ),
        (
            json!({"replicas": -1}),
            "replicas: expected a whole number from 0 to 4294967295, found -1",
        ),
        (
            json!({"size": -1}),
            "size: expected a whole number, 0 or more, found -1",
        ),
        (
            json!({"share": "2GB"}),
            "share: expected a number, found text \"2GB\"",
        ),
        (json!({"name": [1]}), "name: expected text, found a list"),
        (
            json!({"on": "yes"}),
            "on: expected true or false, found text \"yes\"",
        ),
        (json!({"list": 3}), "list: expected a list, found 3"),
        (
            json!({"list": [{"id": "a"}, 7]}),
            "list[1]: expected a mapping of keys, found 7",
        ),
        (
            json!({"list": [["a"]]}),
            "list[0]: expected a mapping of keys, found a list",
        ),
        (
            json!({"list": [{"id": {}}]}),
            "list[0].id: expected text, found a mapping",
        ),
        (json!({"list": [{}]}), "list[0]: the key id is missing"),
        (
            json!({"map": true}),
            "map: expected a mapping of keys, found true",
        ),
        (
            json!({"map": {"a": null}}),
            "map.a: expected a whole number, found nothing",
        ),
        (
            json!({"pair": "x"}),
            "pair: expected a list of 2, found text \"x\"",
        ),
        (
            json!({"choice": 80}),
            "choice: expected one of plain, image, program, found 80",
        ),
        (
            json!({"choice": "imag"}),
            "choice: expected one of plain, image, program, found text \"imag\"",
        ),
        (
            json!({"choice": "image"}),
            "choice: image needs a value: write image: ...",
        ),
        (
            json!({"choice": {"plain": 1}}),
            "choice.plain: plain takes no value: write plain alone",
        ),
        (
            json!({"choice": {"image": 1}}),
            "choice.image: expected text, found 1",
        ),
        (
            json!({"choice": {"program": {"command": "x"}}}),
            "choice.program.command: expected a list, found text \"x\"",
        ),
        (
            json!({"choice": {"image": "x", "plain": null}}),
            "choice: expected one of plain, image, program, found a mapping of 2 keys",
        ),
        (json!([]), "expected a mapping of keys, found a list"),
    ] {
        assert_eq!(told(tree), words);
    }
    let long = told(json!({"on": "x".repeat(1000)}));
    assert!(long.len() < 150, "{long}");
}

#[test]
fn an_unknown_key_is_told_with_the_one_that_was_meant() {
    let words = told(json!({"replcias": 1}));
    assert!(
        words.starts_with(
            "replcias: unknown key \"replcias\"; did you mean replicas? known here: replicas, "
        ),
        "{words}"
    );
    let words = told(json!({"list": [{"id": "a", "weather": 1}]}));
    assert_eq!(
        words,
        "list[0].weather: unknown key \"weather\"; known here: id"
    );
    assert!(
        read::<Sample>(&json!({"x": 1}))
            .unwrap_err()
            .is_unknown_key()
    );
    let words = told(json!({"choice": {"imgae": "x"}}));
    assert!(words.starts_with("choice.imgae: "), "{words}");
}

#[test]
fn what_is_written_in_yaml_may_be_a_text_that_looks_like_a_number() {
    let tree = json!({"name": 5, "list": null, "map": null, "share": null});
    let read: Sample = read_written(&tree).unwrap();
    assert_eq!(read.name, "5");
    assert!(read.share.is_nan());
    assert!(super::read::<Sample>(&tree).is_err());
}

#[test]
fn what_is_right_is_read() {
    let tree = json!({"replicas": 2, "pair": [1, 2], "choice": {"image": "x"}, "map": {"a": -1}});
    let sample: Sample = read(&tree).unwrap();
    assert_eq!((sample.replicas, sample.pair), (2, Some((1, 2))));
    assert_eq!(sample.choice, Some(Sort::Image("x".to_owned())));
    assert_eq!(sample.map["a"], -1);
    assert_eq!(
        read::<Sample>(&json!({"choice": "plain"})).unwrap().choice,
        Some(Sort::Plain)
    );
}

#[test]
fn a_known_key_is_listed_once() {
    assert_eq!(
        unknown_key("kindd", &["kind", "name", "kind"]),
        "unknown key \"kindd\"; did you mean kind? known here: kind, name"
    );
    assert_eq!(
        unknown_key("x", &[]),
        "unknown key \"x\"; no key is known here"
    );
}

#[test]
fn a_huge_number_is_no_row_of_zeros() {
    let cases = [
        (0.0, "0"),
        (-0.25, "-0.25"),
        (1_000_000.0, "1000000"),
        (1e300, "1e300"),
        (-2.5e18, "-2.5e18"),
        (f64::INFINITY, "inf"),
    ];
    for (value, words) in cases {
        assert_eq!(number(value), words);
    }
}
