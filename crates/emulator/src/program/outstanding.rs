//! Loads that may still be on their way when a warp tells its cluster that it has read.
//!
//! A block's shared memory goes with the block, so blocks that read each other's meet before they end. An arrival that releases nothing
//! waits for no load, and whoever turns assembly into a card's instructions may put what needs the loads behind it. A branch that needs them
//! stays before it. Here everything is done in the order of the text, so that cannot be seen while a kernel runs: the text itself is looked at.

use std::collections::{BTreeSet, HashMap};

use super::{CONSTANT, Code, Program, Role, Slot, allocate::visit};
use crate::error::{Error, Result};

/// The loads, by their steps, that something was made of.
type Loads = BTreeSet<usize>;

/// Whether every such arrival stands behind branches that need all loads from other blocks' memory, or hangs on them itself.
pub fn check(program: &mut Program) -> Result<()> {
    let Program { steps, statements, .. } = program;
    let mut outstanding = Loads::new();
    let mut made_of: HashMap<Slot, Loads> = HashMap::new();
    for (index, step) in steps.iter_mut().enumerate() {
        let (line, statement) = &statements[step.statement];
        let is_conditional = step.guard.is_some();
        if let Some(loads) = step.guard.and_then(|(guard, _)| made_of.get(&guard)) {
            outstanding.retain(|load| !loads.contains(load));
        }
        if matches!(step.code, Code::ClusterArrive) {
            if statement.contains("relaxed") && !outstanding.is_empty() {
                let detail = "what was loaded from other blocks' memory may not be there yet".into();
                return Err(Error::Instruction { line: *line, statement: statement.clone(), detail });
            }
            outstanding.clear();
        }
        let mut of = Loads::new();
        let mut written = Vec::new();
        if matches!(step.code, Code::Load { .. }) && statement.contains("shared::cluster") {
            outstanding.insert(index);
            of.insert(index);
        }
        visit(step, &mut |slot, _, role| {
            if *slot & CONSTANT != 0 {
                return;
            }
            if role != Role::Writes || is_conditional {
                of.extend(made_of.get(slot).into_iter().flatten());
            }
            if role != Role::Reads {
                written.push(*slot);
            }
        });
        made_of.extend(written.into_iter().map(|slot| (slot, of.clone())));
    }
    Ok(())
}
