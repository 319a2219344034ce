# A lock as programs in Perl have it on one Redis, by Redis.pm or Redis::Fast: SET NX EX, and a script that compares
# and deletes.
#
#     adopted.pl MODULE count PORT NAME TIMES    adds one to NAME:count under the lock lock:NAME, TIMES times
#     adopted.pl MODULE hold PORT NAME           takes lock:NAME, says "held", and keeps it until it is killed
use strict;
use warnings;
use Time::HiRes 'sleep';

my ($module, $what, $port, $name, $times) = @ARGV;
eval "require $module" or die $@;
my $redis = $module->new(server => "127.0.0.1:$port");
my $key = "lock:$name";

sub take {
    open my $random, '<:raw', '/dev/urandom' or die $!;
    read $random, my $bytes, 16;
    my $token = unpack 'H*', $bytes;
    sleep 0.05 until $redis->set($key, $token, 'NX', 'EX', 5);
    return $token;
}

sub release {
    my $script = q{
        if redis.call('get', KEYS[1]) == ARGV[1] then
            return redis.call('del', KEYS[1])
        else
            return 0
        end
    };
    my $released = $redis->eval($script, 1, $key, @_);
    die "release: $released" unless $released == 1;
}

if ($what eq 'hold') {
    take();
    $| = 1;
    print "held\n";
    sleep 1 while 1;
}
for (1 .. $times) {
    my $token = take();
    my $count = $redis->get("$name:count") // 0;
    sleep 0.005;
    $redis->set("$name:count", $count + 1);
    release($token);
}
