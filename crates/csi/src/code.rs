//! The one table: what a gRPC code answered by a driver says about the volume.
//!
//! After an error the question is not "did it fail" but "may it still be running, or be done". CSI lets a driver go on
//! after a deadline, and only the inverse call or the same call repeated tells. Everyone who calls a driver asks here.

use tonic::{Code, Status};

/// Calls whose codes are read alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// CreateVolume.
    CreateVolume,
    /// DeleteVolume, DeleteSnapshot, DeleteVolumeGroupSnapshot.
    Delete,
    /// ControllerPublishVolume: attach.
    ControllerPublish,
    /// ControllerUnpublishVolume: detach.
    ControllerUnpublish,
    /// ControllerExpandVolume.
    ControllerExpand,
    /// ControllerModifyVolume.
    ControllerModify,
    /// CreateSnapshot and CreateVolumeGroupSnapshot.
    CreateSnapshot,
    /// NodeStageVolume.
    NodeStage,
    /// NodePublishVolume.
    NodePublish,
    /// NodeUnpublishVolume and NodeUnstageVolume.
    NodeUnpublish,
    /// NodeExpandVolume.
    NodeExpand,
    /// Calls that change nothing: capabilities, info, lists, statistics, validation, probe.
    Read,
}

impl Family {
    /// Every family, for tables and tests.
    pub const ALL: [Self; 12] = [
        Self::CreateVolume,
        Self::Delete,
        Self::ControllerPublish,
        Self::ControllerUnpublish,
        Self::ControllerExpand,
        Self::ControllerModify,
        Self::CreateSnapshot,
        Self::NodeStage,
        Self::NodePublish,
        Self::NodeUnpublish,
        Self::NodeExpand,
        Self::Read,
    ];
}

/// What is known about an operation once its call has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// It is done.
    Done,
    /// It may be done, be running, or start later: assume the worst until a repeated or inverse call answers.
    Uncertain,
    /// It failed and is certainly not running.
    Final,
    /// As `Final`, and asking again without a change to the request is pointless: retry slowly.
    Infeasible,
    /// As `Final`, and no room where it was asked for: let the scheduler choose another node, if it chose this one.
    Reschedule,
    /// As `Final`, and impossible while the volume is in use: wait until it is not.
    InUse,
}

impl Outcome {
    /// Whether the driver may still be at it, so that nothing may be concluded or cleaned up.
    pub fn may_be_running(self) -> bool {
        self == Self::Uncertain
    }
}

/// What this code means for a call of this family.
pub fn outcome(family: Family, code: Code) -> Outcome {
    use Family::*;
    match (code, family) {
        (Code::Ok, _) => Outcome::Done,
        // Nothing changes, so nothing can be left half done.
        (_, Read) => Outcome::Final,
        // A mount may be there whatever the driver says; only the kernel's mount table or success ends it.
        (_, NodeUnpublish) => Outcome::Uncertain,
        (Code::Cancelled | Code::DeadlineExceeded | Code::Unavailable | Code::Aborted, _) => Outcome::Uncertain,
        // CSI gives CreateVolume a meaning for it (no room in that topology); elsewhere gRPC itself may be the sender.
        (Code::ResourceExhausted, CreateVolume) => Outcome::Reschedule,
        (Code::ResourceExhausted, _) => Outcome::Uncertain,
        (Code::InvalidArgument, CreateVolume | ControllerExpand | ControllerModify | NodeExpand) => Outcome::Infeasible,
        (Code::OutOfRange | Code::NotFound, ControllerExpand | NodeExpand) => Outcome::Infeasible,
        (Code::FailedPrecondition, ControllerExpand | NodeExpand) => Outcome::InUse,
        (
            Code::Unknown
            | Code::InvalidArgument
            | Code::NotFound
            | Code::AlreadyExists
            | Code::PermissionDenied
            | Code::FailedPrecondition
            | Code::OutOfRange
            | Code::Unimplemented
            | Code::Internal
            | Code::DataLoss
            | Code::Unauthenticated,
            _,
        ) => Outcome::Final,
    }
}

/// [`outcome`] of an error as our [`Channel`](crate::Channel) reports it: a lost connection is already `Unavailable`
/// there, so no broken transport can pass for a driver's final word.
pub fn outcome_of(family: Family, status: &Status) -> Outcome {
    outcome(family, status.code())
}

/// The code's name as Go's gRPC prints it, which metrics and the originals' dashboards use: `OK`, `Canceled`.
pub fn name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "Canceled",
        Code::Unknown => "Unknown",
        Code::InvalidArgument => "InvalidArgument",
        Code::DeadlineExceeded => "DeadlineExceeded",
        Code::NotFound => "NotFound",
        Code::AlreadyExists => "AlreadyExists",
        Code::PermissionDenied => "PermissionDenied",
        Code::ResourceExhausted => "ResourceExhausted",
        Code::FailedPrecondition => "FailedPrecondition",
        Code::Aborted => "Aborted",
        Code::OutOfRange => "OutOfRange",
        Code::Unimplemented => "Unimplemented",
        Code::Internal => "Internal",
        Code::Unavailable => "Unavailable",
        Code::DataLoss => "DataLoss",
        Code::Unauthenticated => "Unauthenticated",
    }
}

/// The code with this name, if it is one.
pub fn from_name(text: &str) -> Option<Code> {
    (0..17).map(Code::from_i32).find(|code| name(*code) == text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// D done, u uncertain, f final, i infeasible, r reschedule, b in use (busy). Columns are the codes 0 to 16:
    /// Ok Cancelled Unknown InvalidArgument DeadlineExceeded NotFound AlreadyExists PermissionDenied ResourceExhausted
    /// FailedPrecondition Aborted OutOfRange Unimplemented Internal Unavailable DataLoss Unauthenticated
    const TABLE: [(Family, &str); 12] = [
        (Family::CreateVolume, "Dufiufffrfufffuff"),
        (Family::Delete, "Duffufffufufffuff"),
        (Family::ControllerPublish, "Duffufffufufffuff"),
        (Family::ControllerUnpublish, "Duffufffufufffuff"),
        (Family::ControllerExpand, "Dufiuiffubuiffuff"),
        (Family::ControllerModify, "Dufiufffufufffuff"),
        (Family::CreateSnapshot, "Duffufffufufffuff"),
        (Family::NodeStage, "Duffufffufufffuff"),
        (Family::NodePublish, "Duffufffufufffuff"),
        (Family::NodeUnpublish, "Duuuuuuuuuuuuuuuu"),
        (Family::NodeExpand, "Dufiuiffubuiffuff"),
        (Family::Read, "Dffffffffffffffff"),
    ];

    fn letter(outcome: Outcome) -> char {
        match outcome {
            Outcome::Done => 'D',
            Outcome::Uncertain => 'u',
            Outcome::Final => 'f',
            Outcome::Infeasible => 'i',
            Outcome::Reschedule => 'r',
            Outcome::InUse => 'b',
        }
    }

    #[test]
    fn every_code_of_every_family_reads_as_the_reference_says() {
        assert_eq!(TABLE.map(|(family, _)| family), Family::ALL);
        for (family, row) in TABLE {
            assert_eq!(row.len(), 17, "{family:?}");
            let read: String = (0..17).map(|code| letter(outcome(family, Code::from_i32(code)))).collect();
            assert_eq!(read, row, "{family:?}");
        }
    }

    #[test]
    fn every_code_is_found_again_by_its_name_and_the_names_are_those_of_go() {
        for code in (0..17).map(Code::from_i32) {
            assert_eq!(from_name(name(code)), Some(code));
        }
        assert_eq!((name(Code::Ok), name(Code::Cancelled)), ("OK", "Canceled"));
        assert_eq!((from_name(""), from_name("SecretUnavailable")), (None, None));
    }

    #[test]
    fn only_uncertain_may_be_running() {
        for family in Family::ALL {
            for code in (0..17).map(Code::from_i32) {
                let outcome = outcome(family, code);
                assert_eq!(outcome.may_be_running(), letter(outcome) == 'u', "{family:?} {code:?}");
            }
        }
    }

    #[test]
    fn no_change_is_certain_after_a_call_that_was_cut_short() {
        for family in Family::ALL.into_iter().filter(|f| *f != Family::Read) {
            for status in [Status::cancelled(""), Status::deadline_exceeded(""), Status::unavailable("")] {
                assert!(outcome_of(family, &status).may_be_running(), "{family:?} {status:?}");
            }
        }
    }
}
