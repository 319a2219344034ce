"""What threads get of the helper, and how it tells a loss."""

import asyncio
import contextlib
import functools
import os
import pickle
import re
import subprocess
import sys
import textwrap
import threading
import time
import uuid

import lockgate
import lockgate.asyncio
import redis
import redis.asyncio
from deployment import eventually
from lockgate import LockLost, NotAcquired

TTL = 4.0  # locks.default_ttl
CHILD = os.path.join(os.path.dirname(__file__), "child.py")


def client(deployment, protocol=3, **settings):
    return redis.Redis(port=deployment.calm.port, protocol=protocol, **settings)


@contextlib.contextmanager
def raises(kind, *words):
    try:
        yield
    except kind as error:
        if not all(word in str(error) for word in words):
            raise
        return
    raise AssertionError(f"no {kind.__name__}")


def elsewhere(function):
    """Returns what a function returns in another thread, or raises what it raises there."""
    told = []

    def run():
        try:
            told.append((function(), None))
        except BaseException as error:
            told.append((None, error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    result, error = told[0]
    if error:
        raise error
    return result


def refused(r, key, **options):
    """Whether another thread is refused the lock."""

    def try_it():
        with lockgate.lock(r, key, wait=0, **options):
            return False

    try:
        return elsewhere(try_it)
    except NotAcquired as error:
        if error.reason != NotAcquired.HELD:
            raise
        return True


def take_back(r, key):
    assert r.execute_command("LOCKGATE", "UNLOCK", key, "ANY") == 1


def child(*words, **settings):
    """Runs a program beside this one, for a few minutes at most: the machine may be busy."""
    command = [sys.executable, CHILD, *map(str, words)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True, **settings)
    limit = threading.Timer(200, process.kill)
    limit.daemon = True
    limit.start()
    return process


def test_many_processes_exclude_one_another(deployment):
    r = client(deployment)
    r.delete("counter")
    kinds = [("threads", 2), ("tasks", 3), ("threads", 3), ("tasks", 2)]
    children = [child("add", deployment.calm.port, kind, protocol, 15) for kind, protocol in kinds]
    for process in children:
        assert process.wait() == 0
    assert int(r.get("counter")) == 60


def test_the_grant_tells_what_is_held(deployment):
    for protocol in (2, 3):
        for decode in (False, True):
            r = client(deployment, protocol, decode_responses=decode)
            with lockgate.lock(r, "told") as first:
                assert 0 < first.remaining() <= TTL and first.name == "told" and first.names == ("told",)
                assert first.fences == {"told": first.fence} and len(first.token) == 32
                assert not first.lost.is_set() and not first.lost.wait(0.05)
                first.check()
                assert first.execute("GET", "nothing") is None
            assert first.remaining() == 0 and not first.lost.is_set()
            with raises(lockgate.LockgateError, "released"):
                first.check()
            with lockgate.lock(r, b"told") as second:
                assert second.fence > first.fence and second.token != first.token and second.name == b"told"


def test_waiting_ends_when_it_should(deployment):
    r = client(deployment)
    with lockgate.lock(r, "busy"):
        for wait in (0, 0.5, 1.7):  # the last is longer than one WAIT may be here
            begun = time.monotonic()
            with raises(NotAcquired, "'busy'", "other clients hold it"):
                elsewhere(lockgate.lock(r, "busy", wait=wait).acquire)
            assert time.monotonic() - begun >= wait


def test_a_waiter_gets_the_lock_with_all_of_its_validity(deployment):
    # It waits for long: in one piece, and in several; for longer than the client waits for a reply, and than the TTL.
    patient = deployment.proxy("patient").port
    for port, seconds, wait in ((patient, TTL * 0.7, 60), (deployment.calm.port, TTL + 0.5, None)):
        r = redis.Redis(port=port, socket_timeout=0.3)
        held = lockgate.lock(r, "line").acquire()
        timer = threading.Timer(seconds, held.release)
        timer.start()
        with elsewhere(lockgate.lock(r, "line", wait=wait).acquire) as grant:
            assert grant.remaining() > TTL / 2 and grant.fence > held.fence
        timer.join()


def test_the_connection_is_made_as_the_clients(deployment):
    r = client(deployment)
    r.execute_command("ACL", "SETUSER", "bank", "on", ">secret", "+@all", "~lock:own", "~mine")
    for protocol in (2, 3):
        own = client(deployment, protocol, username="bank", password="secret", db=2, client_name="teller")
        with lockgate.lock(own, "own") as grant:
            me = grant.redis.client_info()
            assert (me["user"], int(me["db"]), me["name"]) == ("bank", 2, "teller"), me
            with raises(redis.exceptions.NoPermissionError):
                elsewhere(lockgate.lock(own, "another").acquire)
    # A right that the user lacks and a wrong password are told at once, however long the program would wait.
    with raises(redis.exceptions.AuthenticationError):
        lockgate.lock(client(deployment, username="bank", password="wrong"), "own").acquire()


def test_what_a_thread_has_it_gets_again(deployment):
    r = client(deployment)
    lock = lockgate.lock(r, "again", wait=0)
    with lock as outer:
        with lock as inner, lockgate.lock(client(deployment), b"again", wait=0) as third:
            assert inner.token == outer.token == third.token
            assert refused(r, "again"), "another thread has none of it"
            # Given back early and twice, it is still the outer block's.
            inner.release()
            third.release()
            third.release()
        assert refused(r, "again"), "the inner block leaves it"
        assert not outer.lost.is_set() and outer.remaining() > 0
        with lockgate.lock(r, "again", shared=True, wait=0):  # it is alone with it
            pass
        with raises(lockgate.LockgateError, "in part"):
            lockgate.lock(r, ["again", "other"]).acquire()
    with raises(LockLost):
        with lock as outer:
            take_back(r, "again")
            assert outer.lost.wait(TTL + 20)
            with raises(LockLost):
                lock.acquire()
            with raises(LockLost):
                outer.release()
    assert not refused(r, "again")


def test_a_wait_that_is_no_number_is_told(deployment):
    for wait in ["1", -1, float("nan")]:
        with raises(ValueError, "wait should be a number of seconds"):
            lockgate.lock(client(deployment), "any", wait=wait)


def test_several_locks_are_taken_all_or_none(deployment):
    r = client(deployment)
    with lockgate.lock(r, ["several:1", "several:2"]) as grant:
        assert set(grant.fences) == {"several:1", "several:2"} and refused(r, "several:1")
        assert refused(r, ["several:0", "several:2"]) and not refused(r, "several:0")
        with raises(lockgate.LockgateError, "is several"):
            assert grant.fence  # of which of them?
        with lockgate.lock(r, b"several:2") as inner:
            assert inner.name == b"several:2" and inner.fence == grant.fences["several:2"]
        grant.execute("PING")
    with raises(LockLost, "'several:1', 'several:2'"):
        with lockgate.lock(r, ["several:1", "several:2"]) as grant:
            take_back(r, "several:2")
            assert grant.lost.wait(TTL + 20)
    assert not refused(r, ["several:1", "several:2"])


def test_permits_are_names_of_their_own(deployment):
    r = client(deployment)
    lock = lockgate.lock(r, "gpu", permits=2, wait=0)
    with lock as first, lock as second:
        assert {first.name, second.name} == {"gpu#0", "gpu#1"}
        with raises(NotAcquired, "permits"):
            lock.acquire()
    with lock, lock:
        pass


def test_readers_share_and_a_writer_is_alone(deployment):
    r = client(deployment)
    with lockgate.lock(r, "shared", shared=True) as reader:
        assert reader.fence == 0 and not refused(r, "shared", shared=True) and refused(r, "shared")
        with lockgate.lock(r, "shared", shared=True) as again:
            assert again.token == reader.token
        with raises(lockgate.LockgateError, "no reader becomes a writer"):
            lockgate.lock(r, "shared").acquire()
        with raises(ValueError), r.pipeline(transaction=False) as pipeline:
            reader.attach(pipeline)
        assert not reader.lost.wait(TTL * 1.2), "it is prolonged"
    assert not refused(r, "shared")


def test_guarded_writes_on_the_own_connection_and_from_a_pool(deployment):
    for protocol in (2, 3):
        r = client(deployment, protocol)
        key = f"account:{protocol}"
        with raises(redis.ResponseError, "NOTHELD"):
            r.set(key, 1)
        with raises(LockLost), lockgate.lock(r, key) as grant:
            grant.redis.set(key, 1)
            with grant.redis.pipeline() as transaction:
                assert transaction.incr(key).execute() == [2]
            with r.pipeline(transaction=False) as pipeline:
                grant.attach(pipeline)
                assert pipeline.incr(key).execute()[-1] == 3
            with r.pipeline() as transaction:
                transaction.watch(key)
                grant.attach(transaction)
                transaction.multi()
                assert transaction.incr(key).execute() == [4]
            for wrong in (r, r.pipeline()):
                with raises(ValueError, "transaction=False"):
                    grant.attach(wrong)
            # A writer that is late: the lock is another's, and it has not heard.
            late = r.pipeline(transaction=False)
            grant.attach(late)
            late.set(key, 1000)
            take_back(r, key)
            with elsewhere(lockgate.lock(r, key).acquire) as next_one:
                next_one.redis.set(key, 5)
                refusals = late.execute(raise_on_error=False)
                assert all(reply is None or isinstance(reply, redis.ResponseError) for reply in refusals), refusals
                with raises(LockLost), grant.redis.pipeline() as transaction:
                    transaction.set(key, 1000).execute()
            with raises(LockLost):
                grant.redis.set(key, 1000)
        assert r.get(key) == b"5"


def test_nothing_is_sent_when_the_validity_is_over(deployment):
    r = client(deployment)
    r.delete("late")
    with raises(LockLost, "confirmed"):
        with lockgate.lock(r, "late") as grant, grant.redis.pipeline() as transaction:
            transaction.watch("late")  # from here on the connection is the transaction's, and the keeper waits
            assert grant.lost.wait(TTL + 20)
            transaction.multi()
            transaction.set("late", 1)
            with raises(redis.WatchError):  # the next one would be told LockLost
                transaction.execute()
            with raises(LockLost):
                transaction.watch("late")
    assert r.get("late") is None and not refused(r, "late")


def test_a_loss_is_told_everywhere(deployment):
    for protocol in (2, 3):
        r = client(deployment, protocol)
        key = f"lost:{protocol}"
        # To who waits for it, at the next step, and behind the block.
        with raises(LockLost, key):
            with lockgate.lock(r, key) as grant:
                take_back(r, key)
                assert grant.lost.wait(TTL + 20) and grant.remaining() == 0
                for step in (grant.check, grant.redis.ping, lambda: grant.execute("SET", "x", 1)):
                    with raises(LockLost, key):
                        step()
        # To the command that comes first, which is not carried out.
        with raises(LockLost, key):
            with lockgate.lock(r, key) as grant:
                take_back(r, key)
                r.delete("written")
                with raises(lockgate._errors.LostReply):  # a LockLost, and a ResponseError
                    grant.redis.set("written", 1)
                assert grant.lost.is_set() and r.get("written") is None
        # Nothing was sent: UNLOCK finds it.
        with raises(LockLost, key):
            with lockgate.lock(r, key):
                take_back(r, key)
        # The body's own error stays.
        try:
            with lockgate.lock(r, key):
                take_back(r, key)
                raise KeyError("mine")
        except KeyError as error:
            assert isinstance(error.__context__, LockLost)
        assert not refused(r, key)


def test_the_connection_ends_and_the_lock_goes_over_to_the_next(deployment):
    for protocol in (2, 3):
        r = client(deployment, protocol)
        with lockgate.lock(r, "moved") as grant:
            fence = grant.fence
            # Where it is another connection by then, none is killed.
            while not r.client_kill_filter(_id=grant.redis.client_id()):
                pass
            # Nothing is repeated: whether it was carried out is not known.
            with raises(redis.ConnectionError):
                eventually("it fails", lambda: not grant.redis.ping())
            assert grant.redis.ping() and not grant.lost.wait(TTL * 1.2)
            assert grant.fence == fence and refused(r, "moved")
        assert not refused(r, "moved")


def test_a_server_that_is_no_proxy_or_is_away_is_named(deployment):
    plain = redis.Redis(unix_socket_path=deployment.path("data"))
    with raises(lockgate.NotLockgate, deployment.path("data"), "no Lockgate proxy"):
        lockgate.lock(plain, "job").acquire()
    with raises(lockgate.NotLockgate):
        lockgate.lock(plain, ["a", "b"]).acquire()
    away = redis.Redis(unix_socket_path=deployment.path("nobody"))
    begun = time.monotonic()
    with raises(NotAcquired, deployment.path("nobody"), "cannot be reached"):
        lockgate.lock(away, "job", wait=0.5).acquire()
    assert time.monotonic() - begun >= 0.5


async def made_in_a_loop():
    return redis.asyncio.Redis()


def test_wrong_arguments_are_told_before_anything_is_asked(deployment):
    r = client(deployment)
    for kind, arguments in (
        (ValueError, {"wait": -1}),
        (ValueError, {"permits": 0}),
        (ValueError, {"permits": 2, "shared": True}),
        (TypeError, {"key": []}),
        (ValueError, {"key": ["a", "b"], "shared": True}),
        (TypeError, {"redis": asyncio.run(made_in_a_loop())}),
        (TypeError, {"redis": "localhost"}),
    ):
        with raises(kind):
            lockgate.lock(**{"redis": r, "key": "x", **arguments})
    for key in (7, None):
        with raises(TypeError, "a key is a str or bytes"):
            lockgate.lock(r, key)
    with raises(redis.ResponseError, "locks.max_ttl"):
        lockgate.once(r, "long", at_least=86_400)(lambda: None)()
    with raises(redis.ResponseError):
        lockgate.lock(r, "x" * 5000).acquire()


def test_errors_come_over_from_other_processes(deployment):
    away = NotAcquired("words", NotAcquired.NO_QUORUM)
    errors = (away, lockgate.Unsupported("words", "SHARED", "0.1"), LockLost("words"))
    for error in errors:
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy), vars(copy)) == (type(error), "words", vars(error))


def test_once_runs_one_of_all(deployment):
    r = client(deployment)
    ran = []
    cron = uuid.uuid4().hex  # leases of an earlier run of this test may last

    @lockgate.once(r, lambda name: f"{cron}:{name}", at_least=8)
    def report(name):
        ran.append(name)
        return name

    assert report("a") == "a" and report("a") is None and report("b") == "b"
    assert elsewhere(lambda: report("a")) is None and ran == ["a", "b"] and report.__name__ == "report"

    @lockgate.once(r, f"{cron}:short", at_least=3)
    def short(seconds):
        ran.append(seconds)
        time.sleep(seconds)
        return True

    assert short(0) and eventually("it is free again", lambda: short(0))
    # While it runs longer, the lease is prolonged.
    runner = threading.Thread(target=eventually, args=("it runs", lambda: short(7.0)))
    runner.start()
    eventually("it runs", lambda: 7.0 in ran)
    while runner.is_alive():
        assert short(0.1) is None or not runner.is_alive()
        time.sleep(0.1)

    @lockgate.once(r, f"{cron}:inner", at_least=3)
    def inner():
        with lockgate.lock(r, f"{cron}:inner", wait=0):
            return inner() is None

    assert inner()

    @lockgate.once(r, f"{cron}:lost", at_least=3)
    def loses():
        take_back(r, f"{cron}:lost")
        time.sleep(3.1)

    with raises(LockLost):
        loses()


def test_once_refuses_what_runs_only_later(deployment):
    async def coroutine():
        pass

    def generator():
        yield

    async def generator_of_tasks():
        yield

    once = functools.partial(lockgate.once, client(deployment), "later", at_least=1)
    tasks = functools.partial(lockgate.asyncio.once, redis.asyncio.Redis(), "later", at_least=1)
    for decorate, functions in (
        (once, (coroutine, functools.partial(coroutine), generator, generator_of_tasks)),
        (tasks, (elsewhere, generator, generator_of_tasks)),
    ):
        for function in functions:
            with raises(TypeError, "once() cannot decorate"):
                decorate()(function)


def test_an_interrupt_leaves_no_lock_behind_and_no_reply_for_another_command(deployment):
    told = child("interrupts", deployment.calm.port, 250)
    said = told.communicate("")[0].splitlines()
    assert said == ["0 stay", "wrong: []", "most go on"], said


def test_an_interrupt_as_an_inner_block_ends_leaves_the_outer_one_its_end(deployment):
    r, me, owner, armed = client(deployment), threading.current_thread(), lockgate._owner.owner, []

    def interrupted():
        if armed and threading.current_thread() is me:
            raise armed.pop()
        return owner()

    lock = lockgate.lock(r, "kept")
    lockgate._owner.owner = interrupted
    try:
        for _ in range(3):
            with lock as outer:
                with raises(KeyboardInterrupt), lock:
                    armed.append(KeyboardInterrupt())
                outer.check()
                assert refused(r, "kept")
            assert not refused(r, "kept")
    finally:
        lockgate._owner.owner = owner


def test_a_grant_that_is_forgotten_stays_held(deployment):
    told = child("forget", deployment.calm.port)
    line = told.stdout.readline()
    assert line == "ResourceWarning: the lock 'forgotten' was dropped without release()\n", line
    r = client(deployment)
    time.sleep(TTL * 1.2)
    assert refused(r, "forgotten")
    told.communicate("")
    assert not refused(r, "forgotten")


def test_a_fork_has_no_lock_and_leaves_the_parents_alone(deployment):
    parents = [(kind, child("fork", deployment.calm.port, kind)) for kind in ("threads", "tasks")]
    for kind, parent in parents:
        assert parent.stdout.readline() == "child: LockLost, LockLost, NotAcquired\n"
        assert parent.stdout.readline() == "parent: held\n"
        # The second child stays when the parent is killed, which frees the lock.
        r = client(deployment)
        assert refused(r, f"fork:{kind}")
        parent.kill()
        parent.wait()
        eventually("the lock is free", lambda: not refused(r, f"fork:{kind}"), limit=TTL / 2)
        parent.stdin.close()


def examples(deployment, page):
    """Returns the programs on a page that use the helper, with the port of a deployment."""
    with open(os.path.join(os.path.dirname(__file__), "../../../..", page)) as file:
        text = file.read()
    fenced = re.findall(r"```python\n(.*?)```", text, re.S)
    text = re.sub(r"```.*?```", "", text, flags=re.S)
    indented = [textwrap.dedent(block) for block in re.findall(r"((?:^(?:    .*)?\n)+)", text, re.M)]
    uses = re.compile(r"lockgate\.(asyncio\.)?(lock|once)\(")
    found = [block for block in fenced + indented if uses.search(block)]
    assert found, f"{page} has none"
    return [block.replace("6380", str(deployment.calm.port)) for block in found]


def test_the_programs_of_the_pages_work(deployment):
    r = client(deployment)
    # The first of each page says what the others use.
    for page in ("clients/python/README.md", "docs/clients/python.md", "README.md"):
        there = {}
        for program in examples(deployment, page):
            before = [int(r.get(key) or 0) for key in ("reports", "nights", "account:1")]
            exec(compile(program, page, "exec"), there)
            after = [int(r.get(key) or 0) for key in ("reports", "nights", "account:1")]
            assert sum(after) > sum(before), (page, program)
