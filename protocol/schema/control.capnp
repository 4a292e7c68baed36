@0xd0b2a1c4e5f60718;
# Control frames: the messages between the administration command and the daemon, and what the daemon tells a client
# that waits for a session. A worker sends its client everything besides replies as notices in reply frames
# (protocol/codec/record.h).

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("gpupool::schema");
using Session = import "session.capnp";
using Administration = import "administration.capnp";

struct Control {
  union {
    statusRequest @0 :Void;          # administration -> daemon
    status @1 :ServerStatus;         # daemon -> administration
    waiting @2 :Waiting;             # daemon -> client of a session, before Welcome or Refused
    administrationRequest @3 :Administration.AdministrationRequest;
    administrationAnswer @4 :Administration.AdministrationAnswer;
  }
}

struct Waiting {
  position @0 :UInt32;               # in the queue, from 1
  length @1 :UInt32;                 # of the queue
  why @2 :Text;                      # for a person: what there is no room for
}

struct ServerStatus {
  version @0 :Text;
  listen @1 :Text;
  driver @2 :Text;                   # the library's path
  driverVersion @3 :Int32;
  uptimeSeconds @4 :UInt64;
  devices @5 :List(DeviceStatus);
  sessions @6 :List(SessionStatus);
  stock :group {                     # workers that wait for a session
    wanted @7 :UInt32;
    ready @8 :UInt32;
    withContext @9 :Bool;            # each holds device memory
  }
}

struct DeviceStatus {
  index @0 :UInt32;
  name @1 :Text;
  uuid @2 :Text;
  memoryUsed @3 :UInt64;
  memoryTotal @4 :UInt64;
}

struct SessionStatus {
  id @0 :Text;
  device @1 :UInt32;
  memoryUsed @2 :UInt64;
  memoryQuota @3 :UInt64;            # 0: none
  peer @4 :Text;
  processName @5 :Text;
  processId @6 :UInt32;
  userName @7 :Text;                 # empty: unknown
  ageSeconds @8 :UInt64;
  workerProcessId @9 :UInt32;
  state @10 :Text;                   # starting, running, disconnected, ending
  userId @11 :UInt32;
  memoryDifference @12 :Int64;       # that NVML shows beyond the account and a context; 0: none, or not known
  waits @13 :List(Session.Wait);     # for what its queued work waits; empty: for nothing
}
