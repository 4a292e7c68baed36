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
  waiting @10 :List(WaitingRequest); # the queue
}

struct DeviceStatus {
  index @0 :UInt32;
  name @1 :Text;
  uuid @2 :Text;
  memoryUsed @3 :UInt64;
  memoryTotal @4 :UInt64;
  memoryPromised @5 :UInt64;         # to jobs, contexts included; never more than there is, unless the operator allows it
  utilization @6 :Int16 = -1;        # percent of the time that some kernel ran; -1: not known
  temperature @7 :Int16 = -1;        # degrees Celsius; -1: not known
  waiting @8 :UInt32;                # requests in the queue that may get it
  sessionClass @9 :Text;             # of the sessions on it: shared or exclusive; empty: none
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
  tenant @14 :Text;
  job @15 :Text;                     # empty: one of its own
  sessionClass @16 :Text;            # shared or exclusive
  priority @17 :UInt32;
  devices @18 :List(DeviceShare);    # in the session's order
  bytesIn @19 :UInt64;               # copied from its client to devices
  bytesOut @20 :UInt64;              # and back
  hostname @21 :Text;                # of the client
}

struct DeviceShare {
  device @0 :UInt32;                 # the server's number
  memoryUsed @1 :UInt64;             # by this session
  memoryQuota @2 :UInt64;            # of its job; 0: none
}

struct WaitingRequest {
  position @0 :UInt32;               # in the queue, from 1
  tenant @1 :Text;
  peer @2 :Text;
  processName @3 :Text;
  priority @4 :UInt32;
  waitedSeconds @5 :UInt64;
  why @6 :Text;                      # what there is no room for
}
