# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_lockgate_global_optspecs
    string join \n config= upgrade h/help V/version
end

function __fish_lockgate_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_lockgate_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_lockgate_using_subcommand
    set -l cmd (__fish_lockgate_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c lockgate -n "__fish_lockgate_needs_command" -l config -d 'The configuration file, in place of the argument' -r -F
complete -c lockgate -n "__fish_lockgate_needs_command" -l upgrade -d 'Takes the place of the proxy that runs with the same upgrade_socket, without a client noticing'
complete -c lockgate -n "__fish_lockgate_needs_command" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c lockgate -n "__fish_lockgate_needs_command" -s V -l version -d 'Print version'
complete -c lockgate -n "__fish_lockgate_needs_command" -a "check" -d 'Says all that is wrong with a configuration file, and with LOCKGATE_LOG'
complete -c lockgate -n "__fish_lockgate_needs_command" -a "doctor" -d 'Looks at every Redis that a configuration file names, and says what is wrong with it and what to do about it. Fails if one is not fit for its part'
complete -c lockgate -n "__fish_lockgate_needs_command" -a "init" -d 'Says that the lock nodes of a configuration file are a new deployment: nobody holds a lock there, so they vote at once. Without it they wait as if they had been restarted'
complete -c lockgate -n "__fish_lockgate_needs_command" -a "nodes" -d 'Shows which lock nodes vote while locks.next_nodes are to take the place of locks.nodes, and makes that change while proxies run'
complete -c lockgate -n "__fish_lockgate_needs_command" -a "dev" -d 'Runs a whole deployment on this machine, for trying things out'
complete -c lockgate -n "__fish_lockgate_needs_command" -a "health" -d 'Asks a running proxy whether it is healthy, at the admin address of its configuration; for a container\'s HEALTHCHECK'
complete -c lockgate -n "__fish_lockgate_needs_command" -a "top" -d 'Shows running proxies in the terminal, all in one: how each is, the lock nodes as they see them, and the locks that clients wait for, with who holds them. `?` says what each key does'
complete -c lockgate -n "__fish_lockgate_needs_command" -a "exec" -d 'Runs a command under a lock, as flock(1) does, for many machines. Ends with the command\'s exit status; with 1 if another client holds the lock, 124 if it was lost, 125 if exec itself fails'
complete -c lockgate -n "__fish_lockgate_needs_command" -a "exec-step" -d 'Becomes the command of exec'
complete -c lockgate -n "__fish_lockgate_needs_command" -a "manual" -d 'Writes the man pages, the completions for bash, fish and zsh and the configuration\'s JSON Schema into a directory'
complete -c lockgate -n "__fish_lockgate_needs_command" -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c lockgate -n "__fish_lockgate_using_subcommand check" -l config -d 'The configuration file, in place of the argument' -r -F
complete -c lockgate -n "__fish_lockgate_using_subcommand check" -s h -l help -d 'Print help'
complete -c lockgate -n "__fish_lockgate_using_subcommand doctor" -l config -d 'The configuration file, in place of the argument' -r -F
complete -c lockgate -n "__fish_lockgate_using_subcommand doctor" -l json -d 'Tells it for programs'
complete -c lockgate -n "__fish_lockgate_using_subcommand doctor" -s h -l help -d 'Print help'
complete -c lockgate -n "__fish_lockgate_using_subcommand init" -l config -d 'The configuration file, in place of the argument' -r -F
complete -c lockgate -n "__fish_lockgate_using_subcommand init" -l if-new -d 'Ends well, and writes nothing, where a node is set up already'
complete -c lockgate -n "__fish_lockgate_using_subcommand init" -s h -l help -d 'Print help'
complete -c lockgate -n "__fish_lockgate_using_subcommand nodes" -l at-most -d 'For how long nobody may be granted a lock at most, as 30s or 500ms: longer copying is not begun, or is taken back. Half of locks.default_ttl without it; with more, session locks may be lost' -r
complete -c lockgate -n "__fish_lockgate_using_subcommand nodes" -l config -d 'The configuration file, in place of the argument' -r -F
complete -c lockgate -n "__fish_lockgate_using_subcommand nodes" -l change -d 'Makes the change: copies the locks, and has locks.next_nodes vote. May be repeated until it is done. All proxies must have read the file before'
complete -c lockgate -n "__fish_lockgate_using_subcommand nodes" -l back-out -d 'Takes a change back that has not come to its end'
complete -c lockgate -n "__fish_lockgate_using_subcommand nodes" -s h -l help -d 'Print help'
complete -c lockgate -n "__fish_lockgate_using_subcommand dev" -l port -d 'Where the proxy listens on 127.0.0.1' -r
complete -c lockgate -n "__fish_lockgate_using_subcommand dev" -l admin-port -d 'Where /metrics, /healthz and /readyz are served on 127.0.0.1' -r
complete -c lockgate -n "__fish_lockgate_using_subcommand dev" -l nodes -d 'Lock nodes: 1, 3 (one may fail), 5 (two may) or 7 (three may). An even number bears no more failures than one less' -r
complete -c lockgate -n "__fish_lockgate_using_subcommand dev" -l guard -d 'Writes to keys like these need the lock of the same name, as \'account:*\' (guards). May be repeated' -r
complete -c lockgate -n "__fish_lockgate_using_subcommand dev" -l adopt -d 'Keys like these are locks of existing libraries, as \'lock:*\', and are taken on the lock nodes (adopt, mode enforce). May be repeated' -r
complete -c lockgate -n "__fish_lockgate_using_subcommand dev" -l sentinel -d 'The data node is a master with two replicas and three Sentinels, which is followed'
complete -c lockgate -n "__fish_lockgate_using_subcommand dev" -l cluster -d 'The data is a Redis Cluster of six nodes; the proxy listens on six ports from --port on'
complete -c lockgate -n "__fish_lockgate_using_subcommand dev" -s h -l help -d 'Print help'
complete -c lockgate -n "__fish_lockgate_using_subcommand health" -l config -d 'Its configuration file' -r -F
complete -c lockgate -n "__fish_lockgate_using_subcommand health" -s h -l help -d 'Print help'
complete -c lockgate -n "__fish_lockgate_using_subcommand top" -l interval -d 'How often each proxy is asked' -r
complete -c lockgate -n "__fish_lockgate_using_subcommand top" -l once -d 'Asks twice, writes one screen as plain text, and ends; so it does anyway where the output is no terminal. Fails if no proxy can be reached'
complete -c lockgate -n "__fish_lockgate_using_subcommand top" -s h -l help -d 'Print help'
complete -c lockgate -n "__fish_lockgate_using_subcommand exec" -l wait -d 'How long to wait while another client holds the lock, as 500ms, 30s or 2m; without it, not at all' -r
complete -c lockgate -n "__fish_lockgate_using_subcommand exec" -s E -l conflict-exit-code -d 'Exit status if another client holds the lock, to tell that from the command\'s own 1' -r
complete -c lockgate -n "__fish_lockgate_using_subcommand exec" -l permits -d 'Takes a free one of so many permits, KEY#0, KEY#1, and so on: at most so many commands run at once' -r
complete -c lockgate -n "__fish_lockgate_using_subcommand exec" -l at-least -d 'Keeps the lock for at least this long, even if the command ends sooner: once per interval, although the clocks of machines differ. At most locks.max_ttl' -r
complete -c lockgate -n "__fish_lockgate_using_subcommand exec" -l grace -d 'How long the command has to end after TERM, before the lock may be another client\'s' -r
complete -c lockgate -n "__fish_lockgate_using_subcommand exec" -l server -d 'The proxy, as redis://host:6380, rediss:// for TLS; without it, the one that LOCKGATE_URL names, which `ps` does not show, or 127.0.0.1:6380' -r
complete -c lockgate -n "__fish_lockgate_using_subcommand exec" -l cacert -d 'The CAs that must have signed the proxy\'s certificate; without it, those that the system trusts' -r -F
complete -c lockgate -n "__fish_lockgate_using_subcommand exec" -l cert -d 'The certificate that the proxy is shown' -r -F
complete -c lockgate -n "__fish_lockgate_using_subcommand exec" -l key -d 'The certificate\'s private key' -r -F
complete -c lockgate -n "__fish_lockgate_using_subcommand exec" -l shared -d 'Shares the lock: any number of such commands run at once, while none runs that has it alone'
complete -c lockgate -n "__fish_lockgate_using_subcommand exec" -s h -l help -d 'Print help'
complete -c lockgate -n "__fish_lockgate_using_subcommand exec-step" -s h -l help -d 'Print help'
complete -c lockgate -n "__fish_lockgate_using_subcommand manual" -l schema -d 'Prints the JSON Schema of the configuration, for editors, and nothing else'
complete -c lockgate -n "__fish_lockgate_using_subcommand manual" -s h -l help -d 'Print help'
complete -c lockgate -n "__fish_lockgate_using_subcommand help; and not __fish_seen_subcommand_from check doctor init nodes dev health top exec exec-step manual help" -f -a "check" -d 'Says all that is wrong with a configuration file, and with LOCKGATE_LOG'
complete -c lockgate -n "__fish_lockgate_using_subcommand help; and not __fish_seen_subcommand_from check doctor init nodes dev health top exec exec-step manual help" -f -a "doctor" -d 'Looks at every Redis that a configuration file names, and says what is wrong with it and what to do about it. Fails if one is not fit for its part'
complete -c lockgate -n "__fish_lockgate_using_subcommand help; and not __fish_seen_subcommand_from check doctor init nodes dev health top exec exec-step manual help" -f -a "init" -d 'Says that the lock nodes of a configuration file are a new deployment: nobody holds a lock there, so they vote at once. Without it they wait as if they had been restarted'
complete -c lockgate -n "__fish_lockgate_using_subcommand help; and not __fish_seen_subcommand_from check doctor init nodes dev health top exec exec-step manual help" -f -a "nodes" -d 'Shows which lock nodes vote while locks.next_nodes are to take the place of locks.nodes, and makes that change while proxies run'
complete -c lockgate -n "__fish_lockgate_using_subcommand help; and not __fish_seen_subcommand_from check doctor init nodes dev health top exec exec-step manual help" -f -a "dev" -d 'Runs a whole deployment on this machine, for trying things out'
complete -c lockgate -n "__fish_lockgate_using_subcommand help; and not __fish_seen_subcommand_from check doctor init nodes dev health top exec exec-step manual help" -f -a "health" -d 'Asks a running proxy whether it is healthy, at the admin address of its configuration; for a container\'s HEALTHCHECK'
complete -c lockgate -n "__fish_lockgate_using_subcommand help; and not __fish_seen_subcommand_from check doctor init nodes dev health top exec exec-step manual help" -f -a "top" -d 'Shows running proxies in the terminal, all in one: how each is, the lock nodes as they see them, and the locks that clients wait for, with who holds them. `?` says what each key does'
complete -c lockgate -n "__fish_lockgate_using_subcommand help; and not __fish_seen_subcommand_from check doctor init nodes dev health top exec exec-step manual help" -f -a "exec" -d 'Runs a command under a lock, as flock(1) does, for many machines. Ends with the command\'s exit status; with 1 if another client holds the lock, 124 if it was lost, 125 if exec itself fails'
complete -c lockgate -n "__fish_lockgate_using_subcommand help; and not __fish_seen_subcommand_from check doctor init nodes dev health top exec exec-step manual help" -f -a "exec-step" -d 'Becomes the command of exec'
complete -c lockgate -n "__fish_lockgate_using_subcommand help; and not __fish_seen_subcommand_from check doctor init nodes dev health top exec exec-step manual help" -f -a "manual" -d 'Writes the man pages, the completions for bash, fish and zsh and the configuration\'s JSON Schema into a directory'
complete -c lockgate -n "__fish_lockgate_using_subcommand help; and not __fish_seen_subcommand_from check doctor init nodes dev health top exec exec-step manual help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
