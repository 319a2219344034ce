# Commands and LOCK through the proxy by Redis.pm or Redis::Fast, as ../README.md says; the module's name comes first.
use strict;
use warnings;
use Time::HiRes 'time';

my ($module, $what, $port, $name, $wait) = @ARGV;
eval "require $module" or die $@;
# Strings are bytes: Redis.pm would otherwise take and give characters.
my $redis = $module->new(server => "127.0.0.1:$port", encoding => undef);
$| = 1;

sub check {
    my ($what, $got, $wanted) = @_;
    die "$what: " . substr($got // 'nothing', 0, 200) unless defined $got && $got eq $wanted;
}

sub data {
    my $last;
    $redis->incr("$name:n", sub { $last = $_[0] }) for 1 .. 1000;
    $redis->wait_all_responses;
    check('a pipeline', $last, 1000);

    $redis->multi;
    $redis->set("$name:a", 1);
    $redis->incr("$name:a");
    check('MULTI', join(',', $redis->exec), 'OK,2');

    check('BLPOP', join(',', $redis->blpop("$name:list", 0)), "$name:list,pushed");

    my $large = '0123456789abcdef' x 500_000;
    $redis->set("$name:large", $large);
    check('a large value', $redis->get("$name:large"), $large);

    my $bytes = pack 'C*', 0 .. 255;
    $redis->set($name . $bytes, $bytes);
    check('a binary value', $redis->get($name . $bytes), $bytes);

    my $message;
    my $hear = sub { $message = $_[0] };
    $redis->subscribe($name, $hear);
    $redis->wait_for_messages(1) until defined $message;
    check('a message', $message, 'said');
    $redis->unsubscribe($name, $hear);
    check('PING', $redis->ping, 'PONG');
}

sub outcome {
    my ($ask) = @_;
    my $reply = eval { $ask->() };
    return 'error: ' . ($@ =~ s/\n.*//sr) if $@;
    return defined $reply ? 'answered' : 'null';
}

if ($what eq 'data') {
    data();
} elsif ($what eq 'loss') {
    my $grant = $redis->lock($name, 'token') or die 'not granted';
    print "held\n";
    <STDIN>;
    print outcome(sub { scalar $redis->get($name) }), "\n" for 1 .. 2;
} elsif ($what eq 'ask') {
    my $start = time;
    my $said = outcome(sub { scalar $redis->lock($name, 'asks', 'PX', 20_000, 'WAIT', $wait) });
    printf "%.1f %s\n", time - $start, $said;
} elsif ($what eq 'idle') {
    $redis->ping;
    print "ready\n";
    <STDIN>;
    # ping answers nothing where others die.
    print outcome(sub { scalar $redis->get($name); 1 }), "\n" for 1 .. 2;
}
