//! Groups looked at from outside, on a real broker.

mod member;

use member::{Member, WAIT, brokers, named, produce, until};
use seriatim_engine::record::{Offset, PartitionId};
use seriatim_kafka::config::Properties;
use seriatim_kafka::groups::{GroupCommit, GroupState, Groups};
use seriatim_runtime::ports::Source;

fn groups() -> Groups {
    Groups::connect(brokers(), &Properties::default()).unwrap()
}

#[test]
fn a_group_is_told_while_it_runs_and_when_it_has_gone() {
    let (topic, group) = named("told", 3);
    produce(&topic, [0], 5);
    let groups = groups();
    assert_eq!(groups.describe(&group).unwrap(), None);

    let mut one = Member::join(brokers(), &topic, &group, &["client.id=first"]);
    until([&mut one], "it has all", |[one]| {
        one.owned().len() == 3 && one.seen() == 5
    });
    let told = groups.describe(&group).unwrap().expect("it exists");
    assert_eq!(
        (told.state, told.assignor.as_str()),
        (GroupState::Stable, "cooperative-sticky")
    );
    let [member] = &told.members[..] else {
        panic!("{told:?}")
    };
    assert_eq!((member.client_id.as_str(), &member.instance_id), ("first", &None));
    let partition = |number| PartitionId::new(&*topic, number);
    assert_eq!(member.partitions, [0, 1, 2].map(partition));
    assert!(groups.list().unwrap().names.contains(&group));

    assert_eq!(groups.commits(&group).unwrap(), []);
    one.source
        .commit(&[one.commit_of(0, "né"), one.commit_of(2, "")], WAIT)
        .unwrap();
    let commit = |number, offset, metadata: &str| GroupCommit {
        partition: partition(number),
        offset: Offset::new(offset),
        metadata: metadata.to_owned(),
    };
    assert_eq!(groups.commits(&group).unwrap(), [commit(0, 5, "né"), commit(2, 0, "")]);
    let refused = groups.seek(&group, &[(partition(0), Offset::new(1))]).unwrap();
    assert_eq!(refused.len(), 1);
    assert!(refused[0].to_string().contains("stop them first"), "{refused:?}");

    let epochs: Vec<_> = one.assignments.iter().map(|(epoch, _)| epoch).collect();
    one.source.relinquish(&epochs);
    one.source.close();
    let told = groups
        .describe(&group)
        .unwrap()
        .expect("its commits outlive its members");
    assert_eq!((told.state, told.members.len()), (GroupState::Empty, 0));
    assert_eq!(groups.seek(&group, &[(partition(0), Offset::new(1))]).unwrap(), []);
    assert_eq!(groups.commits(&group).unwrap(), [commit(0, 1, ""), commit(2, 0, "")]);
}

#[test]
fn each_log_is_told_or_why_it_is_not() {
    let (topic, _) = named("extents", 2);
    produce(&topic, [1], 5);
    let partitions = [
        PartitionId::new(&*topic, 1),
        PartitionId::new(&*topic, 9),
        PartitionId::new("no-such-topic", 0),
        PartitionId::new(&*topic, 0),
    ];
    let told = groups().extents(&partitions).unwrap();
    let offsets: Vec<_> = told
        .iter()
        .map(|extent| extent.as_ref().ok().map(|extent| extent.offsets.clone()))
        .collect();
    assert_eq!(offsets, [Some(0..5), None, None, Some(0..0)]);
    for missing in [&told[1], &told[2]] {
        let error = missing.as_ref().unwrap_err().to_string();
        assert!(
            error.contains("begins and ends failed: ") && error.contains("nknown"),
            "{error}"
        );
    }
}
