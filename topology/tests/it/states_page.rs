//! The states in the code, in its documentation and on the page for people are the same.

use fleet_topology::State;

const SOURCE: &str = include_str!("../../src/decide/state.rs");
const PAGE: &str = include_str!("../../../docs/states.md");

/// The rows of the table of states, without its head.
fn rows<'a>(text: &'a str, prefix: &str) -> Vec<&'a str> {
    let lines = text.lines().filter_map(|line| line.trim().strip_prefix(prefix));
    let table = lines.skip_while(|line| !line.starts_with("| state |")).skip(2);
    table.take_while(|line| line.starts_with('|')).collect()
}

#[test]
fn the_page_has_the_table_of_the_code() {
    let of_code = rows(SOURCE, "/// ");
    assert!(!of_code.is_empty());
    assert_eq!(of_code, rows(PAGE, ""));
}

#[test]
fn the_table_has_every_state_in_the_order_in_which_they_are_tried() {
    let names: Vec<_> =
        rows(PAGE, "").iter().filter_map(|row| row.split('|').nth(1)).map(str::trim).collect();
    assert_eq!(names, State::ALL.map(State::name));
}

#[test]
fn the_diagram_has_every_state() {
    let (_, diagram) = PAGE.split_once("```mermaid").unwrap();
    let (diagram, _) = diagram.split_once("```").unwrap();
    for state in State::ALL {
        assert!(
            diagram.split(|c: char| !c.is_alphanumeric()).any(|word| word == state.name()),
            "{state} is missing"
        );
    }
}
