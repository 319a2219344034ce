"""Which thread or task has which locks, and what a fork and a forgotten grant mean for them."""

from __future__ import annotations

import asyncio
import os
import threading
import warnings
import weakref
from typing import Any, Dict, List, Optional, Set, Tuple, TypeVar

from ._errors import LockgateError
from ._session import Key, Session, spelled

G = TypeVar("G", bound=Any)

# Locks that are held, with what keeps them: they stay held until they are released, or the process ends.
_kept: Dict[Session, Any] = {}
# All that have connections of their own, which a fork inherits.
_opened: "weakref.WeakSet[Any]" = weakref.WeakSet()
# The locks of each task or thread, by their place and name.
_owned: "weakref.WeakKeyDictionary[Any, Dict[Tuple[str, bytes], Session]]" = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def owner() -> Any:
    """Returns the task that runs, or else the thread: a thread's tasks each have locks of their own."""
    try:
        return asyncio.current_task() or threading.current_thread()
    except RuntimeError:
        return threading.current_thread()


def _names(session: Session) -> Set[Tuple[str, bytes]]:
    return {(session.where, spelled(key)) for key in session.names}


def again(wanted: Session) -> Optional[Tuple[Session, Any, Tuple[Key, ...]]]:
    """Returns the lock that the caller wants with its keeper and the names, if the caller has it already."""
    # Two permits are two, and what is to run once is not to run within itself.
    if wanted.permits is not None or wanted.lease is not None:
        return None
    with _lock:
        owned = _owned.get(owner(), {})
        names = _names(wanted)
        sessions = {owned[name] for name in names if name in owned and not owned[name].dropped}
        if not sessions:
            return None
        (session, *more) = sessions
        if more or not names <= _names(session):
            raise LockgateError(f"the lock {wanted} is held here in part, by {session}; take all of its keys at once")
        if session.shared and not wanted.shared:
            raise LockgateError(f"the lock {wanted} is shared here; release it first, as no reader becomes a writer")
        session.check()
        return session, _kept[session], wanted.names


def joined(session: Session, grant: G) -> G:
    """Counts another block that a lock protects. Nothing is counted if an interrupt ends this."""
    try:
        with _lock:
            session.check()
            session.count += 1
            grant._left = False
        return grant
    except BaseException:
        leave(session, grant)
        raise


def opens(keeper: Any) -> None:
    """Notes that a keeper is about to have a connection."""
    with _lock:
        _opened.add(keeper)


def keep(session: Session, keeper: Any, grant: Any) -> None:
    """Notes that the caller has this lock now."""
    with _lock:
        session.count = 1
        grant._left = False
        _kept[session] = keeper
        if session.permits is None:
            session.owned = _owned.setdefault(owner(), {})
            session.owned.update(dict.fromkeys(_names(session), session))


def leave(session: Session, grant: Any) -> bool:
    """Notes that one block is left. Returns whether it was the last, and the lock is to be released."""
    with _lock:
        if not grant._left:
            session.count -= 1
            grant._left = True
        return session.count == 0


def forget(session: Session) -> None:
    """Forgets a lock that has been released."""
    with _lock:
        _kept.pop(session, None)
        for name in [name for name, held in session.owned.items() if held is session]:
            del session.owned[name]


def dropped(session: Session, keeper: Any, was_entered: bool) -> None:
    """Warns that nobody can release this lock any more. It is not released, as its holder may still be at work, unless
    a block had it, which has been left: an interrupt has come before its end could begin."""
    if session.released or os.getpid() != session.pid:
        return
    session.dropped = True
    held = "it stays held until this process ends" if session.why is None else "it is lost"
    if was_entered:
        keeper.abandoned = True  # Takes no lock: a thread may be interrupted by this anywhere.
        held = "it is released soon"
    warnings.warn(f"the lock {session} was dropped without release(); {held}", ResourceWarning, stacklevel=2)


def _after_fork_in_child() -> None:
    # The proxy keeps a session lock until the last copy of its connection is closed. The parent's stays as it is.
    global _lock
    _lock = threading.Lock()
    _kept.clear()
    _owned.clear()
    if not _opened:
        return
    nothing = os.open(os.devnull, os.O_RDWR)
    for keeper in list(_opened):
        descriptor = keeper.descriptor()
        if descriptor is not None:
            os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)
    _forked.extend(_opened)
    _opened.clear()


# What a child inherits is kept as it is, as its end could disturb what the child shares with its parent.
_forked: List[Any] = []

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
