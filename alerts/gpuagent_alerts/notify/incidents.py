"""The incidents of this node: alerts join the one of their cause, and it ends when nothing of it is true any more.

An alert stays with its incident for as long as it fires, whatever is learned of its cause meanwhile: a receiver that
was told of it under one key must not find it under another. One that is only kept (`keep_firing_for`) begins nothing.
It keeps its incident open if it was the worst when the last condition ceased to hold: it may come back, and how long to
wait for that is said by its rule, not by that of the longest forecast.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from gpuagent_alerts.alert import Alert, CauseKind, condition_times
from gpuagent_alerts.notify.cause import (
    AT_ONCE,
    REPLICAS,
    TOGETHER,
    Cause,
    CauseFacts,
    cause_of,
    concerns,
    is_one_course,
    is_other_container,
    moved_cause,
    shares_owner,
)
from gpuagent_alerts.notify.final_reason import reasons_of_kept
from gpuagent_alerts.notify.incident_labels import PROCESS_KINDS, labels_of_runs, merged_labels
from gpuagent_alerts.notify.incident_record import (
    IncidentRecord,
    end_within,
    load_records,
    moved_record,
    save_records,
)
from gpuagent_alerts.notify.reopened import reopened, restarts_of_reopened
from gpuagent_alerts.notify.succession import MemoryMeter, Watch, watch
from gpuagent_alerts.notify.urgency import (
    CRITICAL,
    GROWS_AGAIN,
    did_nothing,
    is_critical,
    is_remedy_note,
    severity_rank,
    urgency_of,
    worst,
    worst_severity,
)
from gpuagent_alerts.store.database import Store

REOPEN_SECONDS = 1800.0
"""Time after its end within which an incident that begins again is the same one."""
TOGETHER_SECONDS = 900.0
"""What begins on several GPUs within this time came to them together. Its rules ask for 5 min before they fire."""
AT_ONCE_SECONDS = 60.0
"""The same of hardware that fails: its rules ask for no time."""
_KEPT_SECONDS = 86_400.0
_MOST_ENDED = 500
_MOST_LEFT = 64
_WATCHED_SECONDS = 90.0
"""A critical alert that is about to fire counts for so long: those of the shipped forecasts fire within it."""
Describe = Callable[[IncidentRecord, Collection[str]], str]
"""Says in one line what an incident was that has just ended, with the fingerprints of its last alerts."""


class IncidentBook:
    """All incidents that go on or ended within a day."""

    def __init__(self, store: Store, node: str, now: float) -> None:
        """Load the incidents. `node` is a part of every key: PagerDuty hears from many nodes."""
        self._store = store
        self._node = node
        self._records: Mapping[str, IncidentRecord] = load_records(store, now)
        self._unread: dict[str, float] = {}
        """Unix time since which processes of an incident that goes on cannot be listed, by key."""
        self._meters: dict[str, MemoryMeter] = {}
        """Of the successors of processes, by key of the incident that goes on."""
        self.watched: Mapping[str, Watch] = {}
        """What was last seen of the owners of processes, by key of the incident that goes on."""

    @property
    def records(self) -> Mapping[str, IncidentRecord]:
        """By key."""
        return self._records

    def update(
        self,
        firing: Mapping[str, Alert],
        pending: Collection[str],
        facts: CauseFacts,
        now: float,
        *,
        about_to_fire: Collection[Alert] = (),
        ended: Mapping[str, Alert] | None = None,
        describe: Describe = lambda _record, _members: "",
        stirring: Collection[str] = frozenset(),
        growing: Collection[str] = frozenset(),
        owners: Mapping[str, Watch] = MappingProxyType({}),
        untold: Collection[str] = frozenset(),
    ) -> Mapping[str, IncidentRecord]:
        """Return the incidents as they are while these alerts fire, by fingerprint; keep them if the transaction holds.

        `ended` are alerts that ended lately, which know when their conditions ceased to hold. `pending` are
        fingerprints of alerts that lost their state in a restart and are still true: they have not ended. Of what is
        `about_to_fire`, critical alerts keep the severity up that they would bring back in a moment. `stirring`
        are keys of incidents of which something is about to fire: they have not ended either, nor have those in
        `growing`, of which growth goes on that had stopped, and those of which `owners` tells that a restart holds
        their end back. What begins again of `untold`, which a receiver takes to go on, is that. Raises StoreFailure.
        """
        before = self._records
        update = _Update(self._node, before, firing, ended or {}, pending, now, stirring, owners, facts, growing)
        update.about_to_fire = [one for one in about_to_fire if is_soon_critical(one, now)]
        update.untold = untold
        after = {
            key: replace(one, headline=describe(one, one.left)) if _has_ended(before.get(key), one) else one
            for key, one in update.result().items()
        }
        with self._store.transaction():
            save_records(self._store, before, after)
            self._store.after_commit(lambda: self._adopt(after))
        return after

    def note_headlines(self, records: Mapping[str, IncidentRecord], told: Mapping[str, str]) -> None:
        """Keep the lines, by key, by which ends were told: made later than the record's, and both are one document.

        `records` are those of the update in whose transaction this is. Raises StoreFailure.
        """
        after = {
            key: replace(one, headline=told[key]) if one.ends_at is not None and told.get(key) else one
            for key, one in records.items()
        }
        save_records(self._store, records, after)
        self._store.after_commit(lambda: self._adopt(after))

    def follow_clock(self, step: float) -> None:
        """Move begins and ends along when the wall clock was set: what matters is how long ago they were."""
        self._records = {key: moved_record(one, step) for key, one in self._records.items()}
        self._unread = {key: since + step for key, since in self._unread.items()}
        for meter in self._meters.values():
            meter.follow_clock(step)

    def stirring(self, pending: Mapping[str, Alert], facts: CauseFacts, now: float) -> dict[str, list[Alert]]:
        """Return alerts that are about to fire by the key of the incident that they would belong to then."""
        update = _Update(self._node, self._records, {}, {}, (), now, (), {}, facts)
        found: defaultdict[str, list[Alert]] = defaultdict(list)
        for alert in pending.values():
            if (key := update.find_key(cause_of(alert.labels, facts))) is not None:
                found[key].append(alert)
        return dict(found)

    def watch_owners(self, facts: CauseFacts, now: float) -> dict[str, Watch]:
        """Return, by key, what has become of the owners of processes of which an incident goes on.

        A remedy that is under way holds its end back too: what it comes to is a part of that.
        """
        found = {}
        going_on = {key: one for key, one in self._records.items() if one.ends_at is None}
        self._meters = {key: self._meters.get(key, MemoryMeter(now)) for key in going_on}
        self._unread = {key: since for key, since in self._unread.items() if key in going_on}
        for key, one in going_on.items():
            of_process = facts.is_acted_on([name for name in one.identities if name.startswith("pid:")])
            found[key] = Watch(one.restarts, facts.is_acted_on(one.identities), is_acted_on=of_process)
            if one.kind in PROCESS_KINDS:
                seen = facts.owner_of(one.identities)
                elsewhere = {name for other, each in going_on.items() if other != key for name in each.identities}
                own = tuple(each for each in seen.others if f"process:{each.identity}" not in elsewhere)
                seen = seen._replace(others=own, freed_at=facts.freed_at(one.identities))
                now_runs = watch(
                    one.restarts, one.identities, seen, now, one.starts_at, self._meters[key],
                    unread_since=self._unread.get(key),
                )  # fmt: skip
                if not seen.is_readable:
                    self._unread.setdefault(key, now)
                else:
                    self._unread.pop(key, None)
                if now_runs.growth is None:
                    self._meters[key] = MemoryMeter(now)
                found[key] = now_runs._replace(
                    holds=now_runs.holds or found[key].holds,
                    grow_on=seen.grow_on,
                    growing=seen.growing,
                    is_acted_on=of_process,
                    is_freed=seen.freed_at is not None,
                )
        self.watched = found
        return found

    def _adopt(self, after: Mapping[str, IncidentRecord]) -> None:
        self._records = after


class _Update:
    """One change from what was to what is."""

    def __init__(
        self,
        node: str,
        before: Mapping[str, IncidentRecord],
        firing: Mapping[str, Alert],
        ended: Mapping[str, Alert],
        pending: Collection[str],
        now: float,
        stirring: Collection[str],
        owners: Mapping[str, Watch],
        facts: CauseFacts,
        growing: Collection[str] = frozenset(),
    ) -> None:
        self._node = node
        self._growing = growing
        self._firing = firing
        self._ended = ended
        self._pending = pending
        self._now = now
        self._before = before
        self._stirring = stirring
        self._held = {key for key, one in owners.items() if one.holds}
        again = {key: one for key, one in owners.items() if one.news_at is not None and one.news_at <= now}
        self._grow_again = {key: one.growth.bytes_per_second if one.growth else 0.0 for key, one in again.items()}
        self._facts = facts
        self.about_to_fire: Collection[Alert] = ()
        """Critical alerts that may belong to one of them."""
        self.untold: Collection[str] = ()
        self._rising: set[str] = set()
        """Keys of those to which one does."""
        self._records = {
            key: replace(
                one, members={f: keeps for f, keeps in one.members.items() if f in firing or f in pending},
                left=_left(one, firing), reasons=reasons_of_kept(one.members, one.reasons, firing), rises=False,
                restarts=owners[key].restarts if key in owners else one.restarts,
                labels=labels_of_runs(one.labels, owners[key].restarts) if key in owners else one.labels,
                grew_on=tuple(dict.fromkeys((*one.grew_on, *owners[key].grow_on))) if key in owners else one.grew_on,
                grew_together=max(one.grew_together, owners[key].growing) if key in owners else one.grew_together,
            )
            for key, one in before.items()
        }  # fmt: skip
        self._records = {key: self._with_ended(one) for key, one in self._records.items()}

    def _with_ended(self, one: IncidentRecord) -> IncidentRecord:
        """Return it with the alerts that have left it, as far as they are known."""
        members = self._before[one.key].members
        known = ((name, end_within(one, name, self._ended.get(name), was_member=name in members)) for name in one.left)
        found = {name: alert for name, alert in known if alert is not None}
        return one if found == one.ended else replace(one, ended=found)

    def result(self) -> Mapping[str, IncidentRecord]:
        facts = self._facts
        self._move(facts)
        members = {fingerprint for one in self._records.values() for fingerprint in one.members}
        for fingerprint, alert in sorted(self._firing.items(), key=_by_weight):
            if fingerprint not in members and alert.holds:
                self._add(fingerprint, alert, cause_of(alert.labels, facts))
        found = (self.find_key(cause_of(alert.labels, facts)) for alert in self.about_to_fire)
        self._rising = {key for key in found if key is not None}
        return {
            one.key: one for one in self._kept(self._settled(self._with_shared(one)) for one in self._records.values())
        }

    def _with_shared(self, one: IncidentRecord) -> IncidentRecord:
        """Return it with the alerts of others that are as true of its processes."""
        if one.kind not in PROCESS_KINDS:
            return replace(one, shared=())
        found = (name for name, alert in self._firing.items() if alert.holds and name not in one.members
                 and concerns(alert.labels, one.identities, self._facts))  # fmt: skip
        return replace(one, shared=tuple(found))

    def _move(self, facts: CauseFacts) -> None:
        """Give what tells of a GPU's memory to the incident of whose growth it is now."""
        for one in list(self._records.values()):
            if one.kind not in PROCESS_KINDS:
                continue
            for fingerprint in one.members:
                alert = self._firing.get(fingerprint)
                cause = None if alert is None else moved_cause(alert.labels, one.identities, facts)
                if alert is not None and alert.holds and cause is not None:
                    left = self._records[one.key]
                    others = {name: keeps for name, keeps in left.members.items() if name != fingerprint}
                    self._records[one.key] = replace(left, members=others)
                    self._add(fingerprint, alert, cause)

    def _add(self, fingerprint: str, alert: Alert, cause: Cause) -> None:
        found = self._find(cause)
        if found is None:
            if not cause.begins:
                return
            found = IncidentRecord(_key(self._node, cause, alert), cause.kind, (), {}, alert.begins_at)
        # What a remedy did is told with what it was done about, and neither begins that again nor keeps it open.
        is_note = is_remedy_note(alert.labels) and bool(found.identities)
        if cause.begins and found.ends_at is not None and not is_note:
            found = replace(reopened(found, alert), restarts=restarts_of_reopened(found, cause, self._now))
        # A GPU's alert that joins a process must not make it the incident of all that happens to that GPU.
        foreign = is_note or (found.kind in PROCESS_KINDS and cause.kind not in PROCESS_KINDS)
        brought = () if foreign else tuple(one for one in cause.brings if one not in found.identities)
        pace = 0.0 if foreign or found.restarts.pace else self._facts.owner_of(cause.brings).pace
        self._records[found.key] = replace(
            found,
            kind=found.kind if is_note else _kind(found, cause),
            identities=(*(one for one in found.identities if one not in cause.replaces), *brought)[:MOST_IDENTITIES],
            labels=dict(found.labels) if foreign else merged_labels(found, cause),
            starts_at=min(found.starts_at, alert.begins_at) if cause.begins else found.starts_at,
            restarts=replace(found.restarts, pace=pace) if pace > 0 else found.restarts,
            members={**found.members, fingerprint: not is_note and not did_nothing(alert.labels)},
        )

    def find_key(self, cause: Cause) -> str | None:
        """Return the key of the incident that an alert of this cause would join; None if there is none."""
        found = self._find(cause)
        return None if found is None else found.key

    def _find(self, cause: Cause) -> IncidentRecord | None:
        """Return the incident that an alert of this cause joins: by its closest identity, one that goes on first."""
        candidates = sorted(self._records.values(), key=lambda one: (one.ends_at is not None, one.starts_at, one.key))
        for identity in cause.joins:
            for one in candidates:
                is_candidate = identity in one.identities and self._can_join(one, begins=cause.begins)
                if is_candidate and not self._is_over_for_others(one, cause, identity):
                    return one
        for identity in cause.succeeds:
            for one in candidates:
                is_candidate = identity in one.identities and self._can_join(one, begins=cause.begins)
                if is_candidate and self._is_successor(cause, one):
                    return one
        for identity in cause.adopts:
            for one in candidates:
                if identity in one.identities and one.kind is CauseKind.GPU and self._can_join(one, begins=True):
                    return one
        return None

    def _is_over_for_others(self, one: IncidentRecord, cause: Cause, identity: str) -> bool:
        """Return whether it has ended, and what fills that GPU now is another process, or none that grows.

        What has gone on for long on another GPU has not come to this one at the same time. Nor is it that of others
        while its own processes have stopped and another one grows.

        Where nobody grows, the memory is that of the incident for as long as its owner runs. One whose processes are
        gone, and that waits for a restart with nothing true of it, has ended for others.
        """
        if identity.startswith((TOGETHER, AT_ONCE)):
            within = TOGETHER_SECONDS if identity.startswith(TOGETHER) else AT_ONCE_SECONDS
            return one.ends_at is not None or not 0.0 <= self._now - one.starts_at < within
        if identity.startswith(REPLICAS):
            return one.ends_at is not None
        if not identity.startswith("memory:") or one.kind not in PROCESS_KINDS:
            return False
        if cause.kind in PROCESS_KINDS and self._grows_without(one, identity):
            return True
        owner = self._facts.owner_of(one.identities)
        if one.ends_at is None:
            members = [self._firing.get(name) for name, keeps in one.members.items() if keeps]
            is_true = any(alert is not None and alert.holds for alert in members)
            if is_true or owner.runs or owner.others or not owner.is_readable or one.restarts.since is None:
                return False
        return cause.kind in PROCESS_KINDS or (owner.is_readable and not owner.runs and not owner.others)

    def _grows_without(self, one: IncidentRecord, memory: str) -> bool:
        """Return whether others make this memory grow now, and none of an incident's own processes and their owner."""
        uuid, _, instance = memory.removeprefix("memory:").partition("/")
        growers = self._facts.growers(uuid, instance)
        is_own = any(
            f"process:{each.identity}" in one.identities or shares_owner(each, one.identities) for each in growers
        )
        return bool(growers) and not is_own

    def _is_successor(self, cause: Cause, one: IncidentRecord) -> bool:
        """Return whether a process with the command line of an incident's may have been started in its place."""
        ran_beside = cause.identity.removeprefix("process:") in (one.restarts.peers or ())
        if ran_beside or is_other_container(cause.brings, one.identities):
            return False
        return not self._facts.owner_of(one.identities).runs

    def _can_join(self, one: IncidentRecord, *, begins: bool) -> bool:
        if one.ends_at is None:
            return True
        return begins and (0.0 <= self._now - one.ends_at < REOPEN_SECONDS or one.key in self.untold)

    def _settled(self, one: IncidentRecord) -> IncidentRecord:
        """Return it with what follows from its members: whether it goes on, and how bad it is."""
        keeping = [fingerprint for fingerprint, keeps in one.members.items() if keeps]
        firing = {name: self._firing[name] for name in keeping if name in self._firing}
        present = {name: alert for name, alert in firing.items() if alert.holds}
        if present:
            if one.ends_at is not None:
                one = reopened(one, min(present.values(), key=lambda alert: alert.begins_at))
            labels = [alert.labels for alert in present.values()]
            others = [self._firing[name].labels for name in one.shared]
            # What says that the memory is full takes a moment, in which it is no less severe than before.
            full = [{"severity": "critical"}] if self._facts.has_filled(one.identities) else []
            severity = worst_severity([*labels, *others, *full])
            before = self._before.get(one.key)
            rises = one.key in self._rising and severity_rank(severity) < CRITICAL
            if rises and before is not None and before.ends_at is None:
                severity = max(severity, before.severity, key=severity_rank)
            gravest = max(firing, key=lambda name: (urgency_of(firing[name]), firing[name].holds, name))
            return replace(
                one, severity=severity, worst=one.worst.highest(worst(present.values())), gravest=gravest,
                ceased_at=None, rises=rises,
            )  # fmt: skip
        if one.key in self._held and one.ends_at is None:
            ceased_at = one.ceased_at if one.ceased_at is not None or firing else self._end_of(one)
            return self._growing_again(one) if one.key in self._grow_again else replace(one, ceased_at=ceased_at)
        if one.key in self._growing and one.ends_at is None and one.gravest not in firing:
            return one
        if not firing and one.key in self._stirring:
            return one if one.ends_at is None else replace(one, ends_at=None, reopened=one.reopened + 1, headline="")
        is_pending = any(name in self._pending and name not in self._firing for name in keeping)  # after a restart
        if one.ends_at is not None or is_pending or one.gravest in firing:
            return one
        ends_at = self._end_of(one) if one.ceased_at is None else one.ceased_at
        return replace(
            one,
            ends_at=max(ends_at, one.starts_at),
            ceased_at=None,
            left=tuple(dict.fromkeys((*one.left, *one.members))),
        )

    def _growing_again(self, one: IncidentRecord) -> IncidentRecord:
        """Return it as what was started again makes it: that has the room which the one before it had filled."""
        fills = self._facts.has_filled(one.identities, self._grow_again[one.key])
        is_lower = severity_rank(one.severity) > GROWS_AGAIN.severity and not fills
        return replace(one, ceased_at=self._now, severity="warning" if is_lower else one.severity)

    def _end_of(self, one: IncidentRecord) -> float:
        """Return when the last of its conditions ceased to hold."""
        found = ((self._firing.get(name) or self._ended.get(name)) for name in self._before.get(one.key, one).members)
        times = [condition_times(alert)[1] for alert in found if alert is not None]
        return min(max((time for time in times if time is not None), default=self._now), self._now)

    def _kept(self, records: Iterator[IncidentRecord]) -> Iterator[IncidentRecord]:
        ended = 0
        for one in sorted(records, key=lambda one: -(one.ends_at if one.ends_at is not None else float("inf"))):
            if one.ends_at is not None:
                ended += 1
                if ended > _MOST_ENDED or self._now - one.ends_at >= _KEPT_SECONDS:
                    continue
            yield one


def _left(one: IncidentRecord, firing: Collection[str]) -> tuple[str, ...]:
    """Return the fingerprints of the alerts that an incident has had, and that fire no more."""
    if one.ends_at is not None:
        return one.left
    return tuple(dict.fromkeys(name for name in (*one.left, *one.members) if name not in firing))[-_MOST_LEFT:]


def is_soon_critical(alert: Alert, now: float) -> bool:
    """Return whether an alert that is about to fire is critical, and has been so for no longer than a forecast is."""
    is_new = alert.true_from is not None and 0.0 <= now - alert.true_from < _WATCHED_SECONDS
    return is_new and is_critical(alert) and is_one_course(alert.labels)


def _has_ended(before: IncidentRecord | None, after: IncidentRecord) -> bool:
    return before is not None and before.ends_at is None and after.ends_at is not None


def _by_weight(item: tuple[str, Alert]) -> tuple[int, float, int, str]:
    """Order alerts so that what others belong to comes first: processes, then GPUs, then the node; notes at the end."""
    fingerprint, alert = item
    labels = alert.labels
    if is_remedy_note(labels):
        place = 3
    else:
        place = 0 if labels.get("pid") else 1 if labels.get("uuid") or labels.get("gpu") else 2
    return place, alert.starts_at, -severity_rank(labels.get("severity", "")), fingerprint


def _kind(found: IncidentRecord, cause: Cause) -> CauseKind:
    if found.kind not in PROCESS_KINDS and cause.kind in PROCESS_KINDS and found.kind is CauseKind.GPU:
        return cause.kind
    own = [one for one in cause.brings if one.startswith("process:")]
    others = [one for one in found.identities if one.startswith("process:") and one not in own]
    if found.kind is CauseKind.PROCESS and own and others and cause.kind is CauseKind.PROCESS:
        return CauseKind.GROUP
    return found.kind


def _key(node: str, cause: Cause, alert: Alert) -> str:
    """Return a key that follows from what happened and when: the same when it is told again after a loss."""
    text = "\xff".join((node, cause.identity, f"{alert.starts_at:.3f}"))
    return "inc-" + hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:12]


MOST_IDENTITIES = 512
"""Most identities of one incident: a job may have hundreds of ranks."""
