@0xb5a6b6d9a2f0c3e1;
# The handshake: the messages that client and server exchange before the first command.
#
# Life of a session: the client sends Hello as its first frame. The daemon checks version, credentials and capacity. It
# replies Refused (and closes), or passes the connection to a worker, which initialises the driver and replies Welcome.
# If the session has to wait for room, and the client said for how long it would, the daemon first sends control frames
# with Waiting (control.capnp), one whenever the session's position has changed.
# From then on both sides communicate through a wire::Channel. `sessionId` identifies the session in status and logs;
# `sessionToken` is the secret that a lane must present.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("gpupool::schema");

const protocolVersion :UInt32 = 5;
# Raised when the record format or this handshake changes incompatibly. Ends with different numbers refuse each other.
# Calls and notices are agreed on one by one (protocol/codec/agreement.h); frames have a version of their own
# (protocol/wire/frame.h).

struct Hello {
  protocolVersion @0 :UInt32;
  purpose :union {
    session @1 :SessionRequest;
    administration @2 :Void;         # `gpupool status` and the like: Control frames follow
    lane @3 :LaneRequest;            # one more connection of a session, only for bulk data (protocol/wire/lanes.h)
  }
  token @4 :Text;                    # the credential; empty if there is none
  client @5 :ClientInfo;
}

struct ClientInfo {
  version @0 :Text;                  # gpupool's, with the build (common/version.h)
  hostname @1 :Text;
  processName @2 :Text;
  processId @3 :UInt32;
  userName @4 :Text;                 # empty if the client's machine has no name for it
  userId @5 :UInt32;
}

struct SessionRequest {
  quota @0 :Quota;
  addressWindows @1 :List(AddressWindow);   # address ranges free in the client, best first
  environment @2 :List(EnvironmentEntry);   # CUDA_* variables for the server's driver
  compression @3 :Compression;              # of bulk data that the worker sends over lanes
  calls @4 :Data;                           # that the client knows: entries of 8 bytes (protocol/codec/agreement.h)
  notices @5 :Data;                         # in the same form
  job @6 :Text;                             # the processes of a tenant with the same job share one quota; empty: none
  gpus @7 :UInt32;                          # how many; 0: the server decides
  sessionClass @8 :SessionClass;
  priority @9 :Int32 = -1;                  # in the queue, 0 to 100; -1: the server decides
  waitMilliseconds @10 :UInt32;             # at most, for room; 0: not at all. Otherwise the client reads Waiting

  enum Compression {
    whenItPays @0;
    never @1;
    always @2;
  }
}

enum SessionClass {
  unset @0;                          # in a request: the server decides
  shared @1;
  exclusive @2;                      # GPUs that no other job uses
}

struct Quota {
  # The requested quota of each device; 0: the server's default. The server may grant less. The first session of a job
  # decides for the others.
  memoryBytes @0 :UInt64;
  devices @1 :List(DeviceQuota);     # devices with another quota
}

struct DeviceQuota {
  device @0 :UInt32;                 # the server's number
  memoryBytes @1 :UInt64;
}

struct Wait {
  # Queued work of a session: first entries of queues in its worker that wait for one reason.
  reason @0 :Text;                   # order, credit, data, driver call, driver closed, lease
  entries @1 :UInt32;
}

struct AddressWindow {
  base @0 :UInt64;
  bytes @1 :UInt64;
}

struct EnvironmentEntry {
  name @0 :Text;
  value @1 :Text;
}

struct LaneRequest {
  # Answered by an ack frame, or by Refused. Each index is used once in a session.
  sessionId @0 :Text;
  sessionToken @1 :Data;
  index @2 :UInt32;                  # below Welcome.maxLanes
}

struct Refused {
  reason @0 :Reason;
  message @1 :Text;                  # for a person: what happened and what to do

  enum Reason {
    protocol @0;
    credentials @1;
    capacity @2;
    driver @3;
    internal @4;
    shuttingDown @5;
    limits @6;                       # more than the server or the tenant has: asking again is of no use
  }
}

struct Welcome {
  protocolVersion @0 :UInt32;
  sessionId @1 :Text;
  sessionToken @2 :Data;
  serverVersion @3 :Text;            # with the build, as ClientInfo.version
  driverVersion @4 :Int32;           # cuDriverGetVersion of the server's driver
  driverKind @5 :Text;               # "nvidia" or "software"
  window @6 :AddressWindow;          # one of the client's, which the worker has reserved as well
  devices @7 :List(Device);
  peers @8 :List(PeerAttributes);
  errors @9 :List(ErrorText);        # the driver's own names and descriptions
  moduleLoadingMode @10 :Int32;
  maxLanes @11 :UInt32;              # further connections that the session may open; 0: none
  calls @12 :Data;                   # that the server knows, as in SessionRequest
  notices @13 :Data;
  grant @14 :Grant;                  # missing from servers that do not place sessions
}

struct Grant {
  # What a session got.
  tenant @0 :Text;
  devices @1 :List(DeviceQuota);     # its GPUs by the server's numbers, in the order of the program's; memory 0: no quota
  sessionClass @2 :SessionClass;
  priority @3 :UInt32;
}

struct Device {
  name @0 :Text;
  uuid @1 :Data;                     # cuDeviceGetUuid, 16 bytes
  uuidV2 @2 :Data;                   # cuDeviceGetUuid_v2
  totalMemory @3 :UInt64;
  pciBusId @4 :Text;
  attributes @5 :List(Attribute);
  leastStreamPriority @6 :Int32;
  greatestStreamPriority @7 :Int32;
}

struct Attribute {
  id @0 :Int32;
  value @1 :Int32;
  status @2 :Int32;                  # the CUresult of the query; value is valid only if it is 0
}

struct PeerAttributes {
  source @0 :Int32;
  destination @1 :Int32;
  canAccess @2 :Bool;
  attributes @3 :List(Attribute);    # cuDeviceGetP2PAttribute
}

struct ErrorText {
  code @0 :Int32;
  name @1 :Text;
  description @2 :Text;
}
