#!/bin/sh
# The compiler of `make test`: clippy for what has tests, with all of the library in it; otherwise rustc, which is
# quicker. For cargo's RUSTC_WORKSPACE_WRAPPER.
rustc=$1
shift
case " $* " in
*" --test "*) exec clippy-driver "$rustc" "$@" ;;
*) exec "$rustc" "$@" -Dwarnings ;;
esac
