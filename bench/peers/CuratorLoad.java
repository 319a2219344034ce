// The load of bench/coordinators on ZooKeeper, by Curator's recipes:
//
//     java CuratorLoad.java ADDRESS,… MODE CLIENTS SECONDS TTL_MS [HOLD_MS]
//
// Each client has a session (a CuratorFramework) and a thread of its own. Modes and output are those of load.go;
// "pairs" and "contend" take InterProcessMutex, "write" is "pairs" with the write lock of InterProcessReadWriteLock,
// "shared", "one" and "writer" take that one too. What fails ends the process with an error.

import java.lang.management.ManagementFactory;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessLock;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.retry.ExponentialBackoffRetry;

class CuratorLoad {
    static final List<Long> gaps = new ArrayList<>();
    static final List<Double> waits = new ArrayList<>();
    /** When the lock of "contend" was given back last, and by whom. */
    static long released;
    static int last = -1;

    enum Kind { MUTEX, READ, WRITE }

    static class Client {
        final CuratorFramework framework;
        final Map<String, InterProcessLock> locks = new HashMap<>();

        Client(String addresses, int ttl) throws Exception {
            framework = CuratorFrameworkFactory.newClient(addresses, ttl, 15_000, new ExponentialBackoffRetry(100, 5));
            framework.start();
            framework.blockUntilConnected();
        }

        InterProcessLock of(String name, Kind kind) {
            return locks.computeIfAbsent(name + kind, any -> {
                String path = "/locks/" + (kind == Kind.MUTEX ? "mutex/" : "shared/") + name;
                switch (kind) {
                    case MUTEX: return new InterProcessMutex(framework, path);
                    case READ: return new InterProcessReadWriteLock(framework, path).readLock();
                    default: return new InterProcessReadWriteLock(framework, path).writeLock();
                }
            });
        }
    }

    static long cpu() {
        var system = (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        return system.getProcessCpuTime() / 1000;
    }

    static void end(Throwable error) {
        error.printStackTrace();
        Runtime.getRuntime().halt(1);
    }

    public static void main(String[] arguments) throws Exception {
        String mode = arguments[1];
        int clients = Integer.parseInt(arguments[2]);
        double seconds = Double.parseDouble(arguments[3]);
        int ttl = Integer.parseInt(arguments[4]);
        long hold = arguments.length > 5 ? Long.parseLong(arguments[5]) : 0;
        if (mode.equals("hold") || mode.equals("wait")) {
            Client holder = new Client(arguments[0], ttl);
            InterProcessLock lock = holder.of("contended", Kind.MUTEX);
            System.out.println(mode.equals("hold") ? "connected" : "waits");
            lock.acquire();
            Instant now = Instant.now();
            if (mode.equals("hold")) {
                System.out.println("held");
                Thread.sleep(Long.MAX_VALUE);
            }
            System.out.println("granted " + (now.getEpochSecond() * 1_000_000_000L + now.getNano()));
            lock.release();
            holder.framework.close();
            Runtime.getRuntime().halt(0);
        }
        List<Client> all = new ArrayList<>();
        for (int at = 0; at < clients; at++) all.add(new Client(arguments[0], ttl));
        Client writer = mode.equals("writer") ? new Client(arguments[0], ttl) : null;
        // The compiler of the virtual machine has some seconds before the time begins.
        long warm = System.nanoTime() + 3_000_000_000L;
        long until = warm + (long) (seconds * 1e9);
        System.out.println("connected");
        int[] grants = new int[clients];
        List<Thread> running = new ArrayList<>();
        for (int at = 0; at < clients; at++) {
            int client = at;
            Thread thread = new Thread(() -> {
                try {
                    run(all.get(client), client, mode, hold, warm, until, grants);
                } catch (Throwable error) {
                    end(error);
                }
            });
            thread.start();
            running.add(thread);
        }
        sleepUntil(warm);
        System.out.println("begin " + cpu());
        while (writer != null && System.nanoTime() < until) {
            Thread.sleep(2 * hold + 50);
            InterProcessLock lock = writer.of("shared", Kind.WRITE);
            long asked = System.nanoTime();
            lock.acquire();
            waits.add((System.nanoTime() - asked) / 1e6);
            lock.release();
        }
        sleepUntil(until);
        System.out.println("end " + cpu());
        for (Thread thread : running) thread.join();
        Collections.sort(gaps);
        long median = gaps.isEmpty() ? 0 : gaps.get(gaps.size() / 2);
        long p99 = gaps.isEmpty() ? 0 : gaps.get((int) (0.99 * (gaps.size() - 1)));
        System.out.println(String.format(Locale.ROOT,
            "{\"seconds\":%f,\"grants\":[%s],\"handovers\":%d,\"gap_us\":[%d,%d],\"waits_ms\":[%s]}", seconds,
            IntStream.of(grants).mapToObj(Integer::toString).collect(Collectors.joining(",")), gaps.size(), median, p99,
            waits.stream().map(wait -> String.format(Locale.ROOT, "%.3f", wait)).collect(Collectors.joining(","))));
        System.out.flush();
        // No session is left behind, whose end would cost the servers time later.
        if (writer != null) all.add(writer);
        for (Client client : all) client.framework.close();
        Runtime.getRuntime().halt(0);
    }

    static void sleepUntil(long time) throws InterruptedException {
        long left = time - System.nanoTime();
        if (left > 0) Thread.sleep(left / 1_000_000, (int) (left % 1_000_000));
    }

    static void run(Client client, int at, String mode, long hold, long warm, long until, int[] grants)
            throws Exception {
        boolean own = mode.equals("pairs") || mode.equals("write") || mode.equals("shared");
        Kind kind = mode.equals("pairs") || mode.equals("contend") ? Kind.MUTEX
            : mode.equals("write") ? Kind.WRITE : Kind.READ;
        String name = own ? mode + "-" + at : mode.equals("contend") ? "contended" : "shared";
        InterProcessLock lock = client.of(name, kind);
        for (;;) {
            long now = System.nanoTime();
            if (now > until) return;
            boolean counts = now > warm;
            lock.acquire();
            if (mode.equals("contend")) {
                synchronized (gaps) {
                    if (last != at && last >= 0 && counts) gaps.add((System.nanoTime() - released) / 1000);
                    last = at;
                    released = System.nanoTime();
                }
            }
            if (hold > 0) Thread.sleep(hold);
            lock.release();
            if (counts) grants[at]++;
        }
    }
}
