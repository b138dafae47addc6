import io.etcd.jetcd.ByteSequence;
import io.etcd.jetcd.Client;
import io.etcd.jetcd.Lease;
import io.etcd.jetcd.lease.LeaseKeepAliveResponse;
import io.etcd.jetcd.options.LeaseOption;
import io.etcd.jetcd.support.CloseableClient;
import io.etcd.jetcd.support.Observers;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.Timer;
import java.util.TimerTask;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.ExponentialBackoffRetry;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * A contender that the tests of tests/interop start: it runs Java's own clients, and obeys a line at a time.
 *
 * <pre>Interop jetcd|redisson|redisson-fair|curator SERVERS NAME TTL_MS [FAIR_WAIT_MS]</pre>
 *
 * <p>tests/interop/client.py lists the commands and their answers. All are carried out by the main thread,
 * because Redisson's and Curator's locks belong to a thread.
 */
public final class Interop {
    private static final long HOLD_MS = 2; // between reading the counter and writing it

    /** The common interface of the clients' locks. {@code waitMs} below 0: for ever. */
    private interface Locker {
        boolean acquire(long waitMs) throws Exception;

        void release() throws Exception;

        boolean holds();
    }

    /** etcd's own Lock service; one lease for the whole program, as in jetcd's examples. */
    private static final class Jetcd implements Locker {
        private final Client client;
        private final ByteSequence name;
        private final long ttlS;
        private long lease;
        private CloseableClient renewal;
        private ByteSequence key;

        Jetcd(String servers, String name, long ttlMs) throws Exception {
            client = Client.builder().endpoints(servers.split(",")).build();
            this.name = ByteSequence.from(name.getBytes());
            ttlS = ttlMs / 1000;
            begin();
        }

        private void begin() throws Exception {
            Lease leases = client.getLeaseClient();
            lease = leases.grant(ttlS).get().getID();
            renewal = leases.keepAlive(lease, Observers.<LeaseKeepAliveResponse>builder().build());
        }

        @Override
        public boolean acquire(long waitMs) throws Exception {
            if (client.getLeaseClient().timeToLive(lease, LeaseOption.DEFAULT).get().getTTL() <= 0) {
                begin(); // other programs may have taken a TTL to start
            }
            CompletableFuture<io.etcd.jetcd.lock.LockResponse> locking = client.getLockClient().lock(name, lease);
            try {
                key = (waitMs < 0 ? locking.get() : locking.get(waitMs, TimeUnit.MILLISECONDS)).getKey();
                return true;
            } catch (TimeoutException late) {
                // The cancelled wait stays queued, and would get the lock in the end. Only this ends it.
                locking.cancel(true);
                renewal.close();
                client.getLeaseClient().revoke(lease).get();
                begin();
                return false;
            } catch (InterruptedException interrupted) {
                locking.cancel(true);
                throw interrupted;
            }
        }

        @Override
        public void release() throws Exception {
            client.getLockClient().unlock(key).get();
        }

        @Override
        public boolean holds() {
            throw new UnsupportedOperationException("jetcd does not say");
        }
    }

    private static final class Redis implements Locker {
        private final RLock lock;

        Redis(boolean fair, String server, String name, long ttlMs, long fairWaitMs) {
            Config config = new Config();
            config.setThreads(2).setNettyThreads(2); // the machine is small
            config.setLockWatchdogTimeout(ttlMs);
            if (fairWaitMs > 0) {
                config.setFairLockWaitTimeout(fairWaitMs);
            }
            config.useSingleServer()
                    .setAddress(server)
                    .setConnectionMinimumIdleSize(1)
                    .setConnectionPoolSize(4)
                    .setSubscriptionConnectionMinimumIdleSize(1);
            RedissonClient client = Redisson.create(config);
            lock = fair ? client.getFairLock(name) : client.getLock(name);
        }

        @Override
        public boolean acquire(long waitMs) throws InterruptedException {
            if (waitMs >= 0) {
                return lock.tryLock(waitMs, TimeUnit.MILLISECONDS);
            }
            lock.lockInterruptibly();
            return true;
        }

        @Override
        public void release() {
            lock.unlock();
        }

        @Override
        public boolean holds() {
            return lock.isHeldByCurrentThread();
        }
    }

    private static final class Curator implements Locker {
        private final InterProcessMutex mutex;

        Curator(String servers, String name, long ttlMs) throws Exception {
            CuratorFramework client = CuratorFrameworkFactory.newClient(
                    servers, (int) ttlMs, 5_000, new ExponentialBackoffRetry(100, 5));
            client.start();
            client.blockUntilConnected();
            mutex = new InterProcessMutex(client, name);
        }

        @Override
        public boolean acquire(long waitMs) throws Exception {
            if (waitMs >= 0) {
                return mutex.acquire(waitMs, TimeUnit.MILLISECONDS);
            }
            mutex.acquire();
            return true;
        }

        @Override
        public void release() throws Exception {
            mutex.release();
        }

        @Override
        public boolean holds() {
            return mutex.isOwnedByCurrentThread();
        }
    }

    public static void main(String[] arguments) throws Exception {
        String servers = arguments[1];
        String name = arguments[2];
        long ttlMs = Long.parseLong(arguments[3]);
        long fairWaitMs = arguments.length > 4 ? Long.parseLong(arguments[4]) : 0;
        Locker lock = switch (arguments[0]) {
            case "jetcd" -> new Jetcd(servers, name, ttlMs);
            case "redisson" -> new Redis(false, servers, name, ttlMs, fairWaitMs);
            case "redisson-fair" -> new Redis(true, servers, name, ttlMs, fairWaitMs);
            case "curator" -> new Curator(servers, name, ttlMs);
            default -> throw new IllegalArgumentException("no such kind: " + arguments[0]);
        };
        System.out.println("ready");
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String answer;
            try {
                answer = obey(lock, line.split(" "));
            } catch (ExecutionException | RuntimeException error) {
                answer = "error " + error;
            }
            System.out.println(answer);
        }
        Runtime.getRuntime().halt(0); // as if it were killed: its locks end with their lease
    }

    private static String obey(Locker lock, String[] told) throws Exception {
        switch (told[0]) {
            case "acquire":
                return lock.acquire(Long.parseLong(told[1])) ? "granted 0 " + nowMicros() : "timeout";
            case "release":
                long at = nowMicros();
                lock.release();
                return "released " + at;
            case "loop":
                for (int round = Integer.parseInt(told[1]); round > 0; round--) {
                    once(lock, told[3], Path.of(told[4]), Path.of(told[5]));
                    Thread.sleep(Long.parseLong(told[2]));
                }
                return "looped " + told[1];
            case "race":
                return "raced " + race(lock, Long.parseLong(told[1]), Long.parseLong(told[2]), Path.of(told[3]));
            case "interrupt": // wait for the lock like a program without clean-up after an interrupt
                interruptMeIn(Long.parseLong(told[1]));
                try {
                    return lock.acquire(-1) ? "granted 0 " + nowMicros() : "timeout";
                } catch (InterruptedException interrupted) {
                    return "interrupted";
                } catch (RuntimeException error) { // the interrupt came in the middle of one of Redisson's calls
                    if (error.getCause() instanceof InterruptedException) {
                        return "interrupted";
                    }
                    throw error;
                }
            case "holds":
                return "holds " + lock.holds();
            default:
                throw new IllegalArgumentException("no such command: " + told[0]);
        }
    }

    /** Acquire and release the lock for so long, and record when one asked for it, got it and released it. */
    private static int race(Locker lock, long lengthMicros, long holdMicros, Path file) throws Exception {
        StringBuilder turns = new StringBuilder();
        int count = 0;
        for (long end = nowMicros() + lengthMicros; nowMicros() < end; count++) {
            long asked = nowMicros();
            lock.acquire(-1);
            long got = nowMicros();
            if (holdMicros > 0) {
                TimeUnit.MICROSECONDS.sleep(holdMicros);
            }
            turns.append(asked).append(' ').append(got).append(' ').append(nowMicros()).append('\n');
            lock.release();
        }
        Files.writeString(file, turns);
        return count;
    }

    /** Acquire the lock, note the entry, read the counter, pause, write one more, note the exit, release. */
    private static void once(Locker lock, String id, Path counter, Path journal) throws Exception {
        lock.acquire(-1);
        note(journal, "in " + id);
        int count = Integer.parseInt(Files.readString(counter).trim());
        Thread.sleep(HOLD_MS);
        Files.writeString(counter, Integer.toString(count + 1));
        note(journal, "out " + id);
        lock.release();
    }

    private static void note(Path journal, String line) throws Exception {
        Files.writeString(journal, line + "\n", StandardOpenOption.APPEND);
    }

    private static void interruptMeIn(long ms) {
        Thread me = Thread.currentThread();
        Timer timer = new Timer(true);
        timer.schedule(new TimerTask() {
            @Override
            public void run() {
                me.interrupt();
            }
        }, ms);
    }

    private static long nowMicros() {
        return ChronoUnit.MICROS.between(Instant.EPOCH, Instant.now());
    }
}
