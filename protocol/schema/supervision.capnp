@0xe7c1d2b3a4958677;
# Messages between gpupoold and its workers, over a local socket: one at a time, each preceded by its length (UInt32,
# bytes).
#
# A worker is started with the descriptor of its supervision socket. A worker of the stock first receives Preparation,
# loads its driver, and sends Report with the state `stock`; until it gets a session it ends together with the daemon.
#
# A worker receives Assignment, with the descriptors of the client's connection (SCM_RIGHTS). It sends Report whenever
# something has changed and at least once a second, and ends when it receives Stop. If the daemon dies, the worker goes
# on: it tries to reach the daemon's supervision path for a grace period and introduces itself again with Report; after
# that period it ends itself. Further connections of a session are passed in the same way, each with a Lane message.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("gpupool::schema");
using Session = import "session.capnp";

struct ToWorker {
  union {
    assignment @0 :Assignment;
    stop @1 :Text;                   # the reason
    prepare @2 :Preparation;
    lane @3 :Lane;                   # comes with a further connection of the session
    limits @4 :SessionLimits;        # the session has other limits from now on
  }
}

struct Preparation {
  sessionId @0 :Text;                # of the session that the worker will serve
  driverPath @1 :Text;
  environment @2 :List(Session.EnvironmentEntry);
  daemonProcessId @3 :UInt32;
  logLevel @4 :Text;
  context @5 :Bool;                  # make device 0's primary context as well
}

# The limits that the worker enforces. 2^64 - 1: none.
struct SessionLimits {
  copyBytesPerSecond @0 :UInt64 = 18446744073709551615;  # between client and devices, in each direction
  pinnedBytes @1 :UInt64 = 18446744073709551615;         # host memory that is pinned for the client
  handles @2 :UInt64 = 18446744073709551615;             # driver objects
}

struct Lane {
  index @0 :UInt32;
}

struct Assignment {
  sessionId @0 :Text;
  sessionToken @1 :Data;
  hello @2 :Session.Hello;
  peer @3 :Text;
  driverPath @4 :Text;               # the driver library to load
  supervisionPath @5 :Text;          # where to find a restarted daemon
  daemonGraceMilliseconds @6 :UInt32;
  memoryQuotaBytes @7 :UInt64;
  logLevel @8 :Text;
  noDirectory @9 :Text;              # of earlier versions
  noTenant @10 :Text;                # of earlier versions
  imageLimitBytes @11 :UInt64;       # a larger code image is not kept
  maxLanes @12 :UInt32;              # further connections that the session may have
  issuers @13 :UInt32;               # threads that issue launches besides the dispatcher
  sharedMemoryBytes @14 :UInt64;     # pinned memory that the client may share with the worker
  folders :group {                   # which of these are among the descriptors: in this order, behind the connection's
    images @19 :Bool;                # of the tenant's code images
    runtime @20 :Bool;               # of the supervision path, which the worker's user cannot reach by its name
  }
  account :group {                   # of the job's device memory; its memory is the last of the descriptors
    job @15 :Text;                   # the tenant's and the job's name
    slot @16 :UInt32;                # the session's place in it
  }
  grant @17 :Session.Grant;          # what the session got, for Welcome and for Report
  limits @18 :SessionLimits;
}

struct Report {
  sessionId @0 :Text;
  workerProcessId @1 :UInt32;
  state @2 :Text;                    # stock, starting, running, disconnected, ending
  memoryUsed @3 :List(UInt64);       # by device, bytes that this session holds
  startedUnixMilliseconds @4 :Int64;
  peer @5 :Text;
  client @6 :Session.ClientInfo;
  memoryQuotaBytes @7 :UInt64;
  deviceUuids @8 :List(Text);        # of the devices in memoryUsed: a session may see only some
  sessionToken @9 :Data;             # lets a restarted daemon admit this session's lanes
  maxLanes @10 :UInt32;
  context @11 :Bool;                 # in stock: it holds a context, as Preparation requested
  account :group {                   # as in Assignment; its memory comes with the first Report to each daemon
    job @12 :Text;
    slot @13 :UInt32;
  }
  waits @14 :List(Session.Wait);     # for what queued work waits; empty: for nothing
  bytesIn @15 :UInt64;               # copied from the client to devices so far
  bytesOut @16 :UInt64;              # and back
  grant @17 :Session.Grant;          # as in Assignment
  idleMilliseconds @18 :UInt64;      # since the session last sent a command or had work on a GPU
}
