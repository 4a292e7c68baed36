@0xc4a9f1b07d3e5286;
# What an administrator asks a daemon, and what it answers: inside of Control messages (control.capnp), on a connection
# whose Hello has the purpose `administration`. An administrator's token is needed, or the server's own user (or root)
# on a socket of this host. A tenant may ask for what concerns itself alone: its limits and its usage.
#
# Limits travel as texts, as they are written in the server's configuration (docs/configuration.md), so that a new limit
# needs no new message. Times are milliseconds since 1970, days are days since then.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("gpupool::schema");

struct AdministrationRequest {
  union {
    listTenants @0 :Void;            # -> tenants
    addTenant :group {               # -> token
      name @1 :Text;
      administrator @2 :Bool;
    }
    rotateToken :group {             # -> token
      name @3 :Text;
      graceMilliseconds @4 :UInt64;  # for the tokens so far
    }
    revokeTokens :group {            # -> done
      name @5 :Text;
      id @6 :UInt64;                 # 0: all
    }
    showLimits @7 :LimitScope;       # -> limits
    changeLimits :group {            # -> limits: those of now
      scope @8 :LimitScope;
      set @9 :List(LimitText);
      unset @10 :List(Text);         # keys
    }
    endSession :group {              # -> done
      session @11 :Text;
      reason @12 :Text;              # for its user
    }
    showUsage :group {               # -> usage
      tenant @13 :Text;              # empty: all
      firstDay @14 :Int64;
      lastDay @15 :Int64;
    }
  }
}

struct AdministrationAnswer {
  union {
    error @0 :Text;                  # a sentence: what is wrong and what to do
    done @1 :Text;                   # a sentence: what was done
    tenants @2 :List(Tenant);
    token @3 :NewToken;
    limits @4 :List(LimitText);
    usage @5 :List(UsageRow);
  }
}

struct LimitScope {
  union {
    everyone @0 :Void;
    tenant @1 :Text;
    session @2 :Text;                # id
  }
}

struct LimitText {
  key @0 :Text;
  value @1 :Text;
  origin @2 :Text;                   # in answers: where it was set
}

struct Tenant {
  name @0 :Text;
  administrator @1 :Bool;
  addedMilliseconds @2 :Int64;
  tokens @3 :List(TokenFacts);
  sessions @4 :UInt32;               # that run
  gpus @5 :UInt32;                   # of its jobs
  promisedBytes @6 :UInt64;          # device memory of its jobs
  configured @7 :Bool;               # named by the configuration file
}

struct TokenFacts {
  id @0 :UInt64;
  fingerprint @1 :Text;              # the first digits of its hash
  madeMilliseconds @2 :Int64;
  endsMilliseconds @3 :Int64;        # 0: valid until it is revoked
}

struct NewToken {
  # The only message that has a token's text.
  name @0 :Text;
  id @1 :UInt64;
  token @2 :Text;
}

struct UsageRow {
  day @0 :Int64;
  tenant @1 :Text;
  sessions @2 :UInt64;
  gpuMilliseconds @3 :UInt64;
  byteSeconds @4 :UInt64;            # of device memory
  bytesIn @5 :UInt64;                # copied to devices
  bytesOut @6 :UInt64;
}
