use crate::program::Desk;

#[test]
fn the_resolved_configuration_resolves_to_itself() {
    let desk = Desk::new();
    desk.write(
        "c.toml",
        "seed = 3\n[train]\nsteps = 20\ncheckpoint_every = \"10m\"\n[data]\ninput = \"a.txt\"\n",
    );
    let values = |name: &str| {
        let said = desk.ok(&["config", "show", name, "--json"]);
        serde_json::from_str::<serde_json::Value>(&said).unwrap()["values"].clone()
    };
    let toml = desk.ok(&["config", "show", "c.toml"]);
    desk.write("elsewhere/again.toml", &toml);
    assert_eq!(values("elsewhere/again.toml"), values("c.toml"));
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
fn every_value_says_where_it_came_from_in_json_too() {
    let desk = Desk::new();
    desk.write("c.toml", "seed = 3\n[train]\nsteps = 20\n[sample]\nprompts = [\"two\\nlines = here\"]\n");
    let said = desk.ok(&["config", "show", "c.toml", "--model.layers", "2", "--json"]);
    let object: serde_json::Value = serde_json::from_str(&said).unwrap();
    for (key, origin) in [
        ("seed", "line 1"),
        ("train.steps", "line 3"),
        ("sample.prompts", "line 5"),
        ("model.layers", "flag"),
        ("model.width", "default"),
    ] {
        assert_eq!(object["origins"][key], origin, "{key}");
    }
    // Every value has an origin, and nothing else has.
    let values = object["values"].as_object().unwrap();
    let n_values: usize =
        values.values().map(|value| value.as_object().map_or(1, serde_json::Map::len)).sum();
    assert_eq!(object["origins"].as_object().unwrap().len(), n_values);
    assert_eq!(object["values"]["sample"]["prompts"][0], "two\nlines = here");
}

#[test]
fn a_right_configuration_is_said_to_be_right() {
    let desk = Desk::new();
    desk.write("c.toml", "seed = 3\n");
    assert_eq!(desk.ok(&["config", "check", "c.toml"]), "c.toml: all right\n");
    let said = desk.ok(&["config", "check", "c.toml", "--json"]);
    assert_eq!(serde_json::from_str::<serde_json::Value>(&said).unwrap()["right"], true);
    desk.fails(78, &["config", "check", "c.toml", "--model.width", "7"], &["model.width = 7", "multiple"]);
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
