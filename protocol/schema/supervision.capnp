@0xe7c1d2b3a4958677;
# Between gpupoold and its workers, over a local socket: one message at a time, each behind its length (UInt32, bytes).
#
# A worker is started with the descriptor of its supervision socket. One for the stock first receives Preparation, loads
# its driver, and sends Report with the state `stock`; until it gets a session it lives no longer than the daemon.
#
# A worker receives Assignment (with what the client's connection
# consists of as SCM_RIGHTS descriptors), sends Report whenever something changed and at least once a second, and ends when told to
# Stop. When the daemon goes away the worker lives on, tries to reach the daemon's supervision path for its grace, and
# introduces itself again with Report; after the grace it ends itself. Further connections of a session (Lane) come with
# theirs.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("gpupool::schema");
using Session = import "session.capnp";

struct ToWorker {
  union {
    assignment @0 :Assignment;
    stop @1 :Text;                   # why
    prepare @2 :Preparation;
    lane @3 :Lane;                   # a further connection of the session comes with it
  }
}

struct Preparation {
  sessionId @0 :Text;                # that the session will have
  driverPath @1 :Text;
  environment @2 :List(Session.EnvironmentEntry);
  daemonProcessId @3 :UInt32;
  logLevel @4 :Text;
  context @5 :Bool;                  # make device 0's primary context as well
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
  visibleDevices @5 :Text;           # what CUDA_VISIBLE_DEVICES is to be, empty: all
  supervisionPath @6 :Text;          # where to find a restarted daemon
  daemonGraceMilliseconds @7 :UInt32;
  memoryQuotaBytes @8 :UInt64;
  logLevel @9 :Text;
  images :group {                    # of earlier sessions
    directory @10 :Text;             # empty: none are kept
    tenant @11 :Text;                # whose they are, as a folder's name in it
    limitBytes @12 :UInt64;          # of all tenants' together
  }
  maxLanes @13 :UInt32;              # further connections that the session may have
  issuers @14 :UInt32;               # threads that issue launches besides the dispatcher
  sharedMemoryBytes @15 :UInt64;     # pinned memory that the client may share with the worker
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
  deviceUuids @8 :List(Text);        # of the devices that memoryUsed counts: the session may not see all of the server's
  sessionToken @9 :Data;             # so that a daemon that took the session over can let its lanes in
  maxLanes @10 :UInt32;
  context @11 :Bool;                 # in stock: it holds a context, as it was told to
}
