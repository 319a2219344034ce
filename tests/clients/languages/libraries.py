"""Which libraries of which languages run.py drives, and what their defaults do."""

import dataclasses
import re
import subprocess
import sys


@dataclasses.dataclass
class Library:
    """A library: Debian's package, its programs, and what its defaults are."""

    package: str
    commands: list
    adopted: list
    # After how many seconds it gives up waiting for a reply; None is never.
    gives_up: float | None
    # What becomes of a command whose connection breaks before its reply.
    unanswered: str
    # What becomes of the two commands after a connection has broken that nobody used.
    idle: list
    # Whether the lock's holder prolongs it.
    has_watchdog: bool = False


@dataclasses.dataclass
class Language:
    """A language: what runs it, its libraries, and its page."""

    tools: list
    libraries: dict
    page: str
    # What begins a block of the page that is run, and how it is started.
    block: str
    start: list
    # The libraries of the page's programs, in the order of the page; None for one that is not run.
    programs: list


LANGUAGES = {
    "go": Language(
        ["go"],
        {
            "redigo": Library(
                "golang-github-gomodule-redigo-dev",
                ["{go}/commands_redigo"],
                [["{go}/adopted_redigo"]],
                None,
                "error",
                ["error", "error"],
                has_watchdog=True,
            ),
            "redis.v5": Library(
                "golang-gopkg-redis.v5-dev",
                ["{go}/commands_v5"],
                [["{go}/adopted_v5"]],
                3,
                "error",
                ["error", "answered"],
            ),
        },
        "go-java.md",
        "go",
        [],
        ["redigo", "redigo", None],
    ),
    "ruby": Language(
        ["ruby", "sidekiq"],
        {
            "redis-rb": Library(
                "ruby-redis",
                ["ruby", "ruby/commands.rb"],
                [["ruby", "ruby/adopted.rb", "simple"], ["ruby", "ruby/adopted.rb", "redlock"]],
                # 5 s, and the command again.
                10,
                "repeated",
                ["answered", "answered"],
            )
        },
        "ruby.md",
        "ruby",
        ["ruby"],
        ["redis-rb", "redis-rb"],
    ),
    "perl": Language(
        ["perl"],
        {
            module: Library(
                package,
                ["perl", "perl/commands.pl", module],
                [["perl", "perl/adopted.pl", module]],
                None,
                "error",
                ["error", "error"],
            )
            for module, package in [("Redis", "libredis-perl"), ("Redis::Fast", "libredis-fast-perl")]
        },
        "perl.md",
        "perl",
        ["perl"],
        ["Redis", "Redis"],
    ),
    "php": Language(
        ["php"],
        {
            "phpredis": Library(
                "php-redis",
                ["php", "php/commands.php", "phpredis"],
                [["php", "php/adopted.php", "phpredis"]],
                60,
                "error",
                ["answered", "answered"],
            ),
            "Predis": Library(
                "php-predis",
                ["php", "php/commands.php", "predis"],
                [["php", "php/adopted.php", "predis"]],
                60,
                "error",
                ["error", "answered"],
            ),
        },
        "php.md",
        "php",
        ["php"],
        ["phpredis", "Predis", "phpredis"],
    ),
    "lua": Language(
        ["lua5.1"],
        {
            "redis-lua": Library(
                "lua-redis",
                ["lua5.1", "lua/commands.lua"],
                [["lua5.1", "lua/adopted.lua"]],
                None,
                "error",
                ["error", "error"],
            )
        },
        "lua.md",
        "lua",
        ["lua5.1"],
        ["redis-lua", "redis-lua"],
    ),
}


def version_of(package):
    """Returns the version that a Debian package has of its library."""
    told = subprocess.run(
        ["dpkg-query", "--show", "--showformat=${Version}", package], capture_output=True, text=True
    )
    if told.returncode != 0 or not told.stdout:
        sys.exit(f"Missing: Debian's package {package}. scripts/setup.sh languages installs it")
    return re.sub(r"^\d+:|[-+~].*$", "", told.stdout)
