use crate::program::Desk;

#[test]
fn the_resolved_configuration_resolves_to_itself() {
    let desk = Desk::new();
    desk.write(
        "c.toml",
        "seed = 3\n[train]\nsteps = 20\ncheckpoint_every = \"10m\"\n[data]\ninput = \"a.txt\"\n",
    );
    let first = desk.ok(&["config", "show", "c.toml", "--json"]);
    let toml = desk.ok(&["config", "show", "c.toml"]);
    desk.write("elsewhere/again.toml", &toml);
    assert_eq!(desk.ok(&["config", "show", "elsewhere/again.toml", "--json"]), first);
}

#[test]
fn flags_override_the_file_and_the_file_overrides_defaults() {
    let desk = Desk::new();
    desk.write("c.toml", "[train]\nsteps = 20\nlearning_rate = 1e-2\n");
    let said = desk.ok(&["config", "show", "c.toml", "--train.learning-rate", "3e-4", "--model.layers=2"]);
    let origin = |key: &str| said.lines().find(|line| line.starts_with(key)).unwrap().to_string();
    assert!(origin("steps = 20").ends_with("# line 2"), "{said}");
    assert!(origin("learning_rate = 0.0003").ends_with("# flag"), "{said}");
    assert!(origin("layers = 2").ends_with("# flag"), "{said}");
    assert!(origin("heads = ").ends_with("# default"), "{said}");
}

#[test]
fn the_shipped_examples_are_right() {
    let desk = Desk::new();
    for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/examples")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            desk.ok(&["config", "check", path.to_str().unwrap()]);
        }
    }
}
