//! `seriatim group ls`.

use serde::Serialize;

use super::Common;
use super::columns::{Align, cell, table};
use crate::consume::topic_error;
use crate::exit::Exit;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    common: Common,
}

/// All groups, as far as the brokers tell.
#[derive(Serialize)]
struct Listing {
    groups: Vec<Row>,
    /// Why some may be missing.
    missing: Vec<String>,
}

#[derive(Serialize)]
struct Row {
    group: String,
    state: Option<String>,
    #[serde(rename = "type")]
    kind: Option<String>,
    members: Option<usize>,
    /// Why no more is known of it.
    error: Option<String>,
}

pub(super) fn run(args: &Args) -> anyhow::Result<Exit> {
    args.common.verbosity.init();
    let groups = args.common.connect()?;
    let listed = groups.list().map_err(topic_error)?;
    for reason in &listed.missing {
        tracing::warn!("a broker does not tell its groups, and they are missing here: {reason}");
    }
    let described = groups.describe_all(&listed.names).map_err(topic_error)?;
    let rows = listed.names.into_iter().zip(described).filter_map(|(name, group)| {
        Some(match group {
            Ok(group) => {
                // It may have gone meanwhile.
                let group = group?;
                Row {
                    group: name,
                    state: Some(group.state.to_string()),
                    kind: Some(group.kind.to_string()),
                    members: Some(group.members.len()),
                    error: None,
                }
            }
            Err(error) => Row {
                group: name,
                state: None,
                kind: None,
                members: None,
                error: Some(error.to_string()),
            },
        })
    });
    let listing = Listing {
        groups: rows.collect(),
        missing: listed.missing,
    };
    args.common.write(&listing, text)?;
    if listing.groups.is_empty() {
        return Err(Exit::NothingMatched.error("the cluster has no consumer group"));
    }
    Ok(Exit::Fine)
}

fn text(listing: &Listing) -> String {
    if listing.groups.is_empty() {
        return String::new();
    }
    let titles = [
        ("GROUP", Align::Left),
        ("STATE", Align::Left),
        ("TYPE", Align::Left),
        ("MEMBERS", Align::Right),
    ];
    let row = |row: &Row| {
        [
            row.group.clone(),
            cell(row.state.as_ref()),
            cell(row.kind.as_ref()),
            cell(row.members),
        ]
    };
    let mut text = table(titles, &listing.groups.iter().map(row).collect::<Vec<_>>());
    for row in &listing.groups {
        if let Some(error) = &row.error {
            text.push_str(&format!("{}: {error}\n", row.group));
        }
    }
    text
}
