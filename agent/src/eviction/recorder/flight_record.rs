//! An incident and the curves around it -> its record.

use podwarden_policy::PodUid;

use super::{
    OpenIncident,
    curve::{Point, part, thin},
    follow::Curves,
};
use crate::{
    api::types::{Curve, FlightRecord, PodRef},
    reactor::{
        plan::ScopeName,
        trace::{Reading, Subject},
    },
};

/// How long before its origin a flight begins, nanoseconds.
const BEFORE: u64 = 10_000_000_000;

/// Other pods that are shown: those that used the most.
const OTHERS: usize = 2;

/// What is dense in a curve beyond the first and the last step, nanoseconds.
const AROUND: u64 = 50_000_000;

/// The flight; `readings` are the reactor's latest.
pub(super) fn of(open: OpenIncident, curves: &Curves, readings: &[Reading]) -> FlightRecord {
    let incident = &open.incident;
    let origin = incident.origin;
    let fine = |subject| {
        let all = incident.readings.iter().chain(readings);
        let own = all.filter(move |reading| reading.subject == subject);
        own.map(|reading| (reading.at, reading.usage))
    };
    let busy = origin.saturating_sub(AROUND)..=incident.last_step.saturating_add(AROUND);
    let curve = |scope: Option<ScopeName>, pod: Option<PodRef>, points: Vec<Point>| {
        let points = part(points, origin.saturating_sub(BEFORE));
        let offset = |at: u64| i64::try_from(i128::from(at) - i128::from(origin));
        let shown = thin(&points, busy.clone()).into_iter();
        let (offset_nanos, usage_bytes) = shown
            .map(|(at, usage)| (offset(at).unwrap_or(i64::MAX), usage))
            .unzip();
        Curve {
            scope,
            pod,
            offset_nanos,
            usage_bytes,
        }
    };
    let mut drawn = Vec::new();
    for (scope, followed) in &curves.scopes {
        let points = followed.ring.points().chain(fine(Subject::Scope(*scope)));
        drawn.push(curve(Some(*scope), None, points.collect()));
    }
    let own = curves.pods.get(&open.pod.uid);
    let own = own.into_iter().flat_map(|followed| followed.ring.points());
    let closely = incident
        .token
        .into_iter()
        .flat_map(|t| fine(Subject::Pod(t)));
    let own = own.chain(closely).collect();
    drawn.push(curve(None, Some(open.pod.clone()), own));
    let name = |uid: &PodUid| {
        let ranked = incident
            .ranking
            .iter()
            .find(|ranked| ranked.pod.uid == *uid);
        ranked.map_or_else(
            || PodRef {
                name: uid.as_str().into(),
                uid: uid.clone(),
                ..PodRef::default()
            },
            |ranked| ranked.pod.clone(),
        )
    };
    let mut others: Vec<_> = curves
        .pods
        .iter()
        .filter(|(uid, _)| **uid != open.pod.uid)
        .filter_map(|(uid, followed)| Some((followed.ring.usage_at(origin)?, uid, followed)))
        .collect();
    others.sort_by_key(|(usage, uid, _)| (std::cmp::Reverse(*usage), *uid));
    for (_, uid, followed) in others.into_iter().take(OTHERS) {
        let points = followed.ring.points().collect();
        drawn.push(curve(None, Some(name(uid)), points));
    }
    drawn.retain(|curve| !curve.offset_nanos.is_empty());
    let incident = open.incident;
    let mut exits = open.exits;
    exits.sort_by_key(|exit| exit.at_nanos);
    FlightRecord {
        signal: incident.signal,
        origin_nanos: origin,
        levels: incident.levels,
        ranking: incident.ranking,
        candidates: incident.candidates,
        exits,
        curves: drawn,
    }
}
