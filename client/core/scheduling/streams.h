// The streams that the application has created.
//
// Ownership: a member of the session.
// Threads: any.
// Errors: none.
#pragma once

#include "client/core/dispatch/handle_map.h"
#include "client/core/session/contexts.h"

namespace gpupool::client {

struct StreamInfo {
    unsigned flags = 0;
    int priority = 0;
    ContextState* context = nullptr;

    // Does it synchronize with the legacy stream?
    [[nodiscard]] bool blocking() const { return (flags & CU_STREAM_NON_BLOCKING) == 0; }
};

class Streams : public HandleMap<CUstream, StreamInfo> {
  public:
    // The default streams, which exist without being created.
    static bool is_special(CUstream stream) { return codec::to_wire(stream) <= codec::to_wire(CU_STREAM_PER_THREAD); }
    [[nodiscard]] bool may_be_used(CUstream stream) const {
        StreamInfo info;
        return is_special(stream) || find(stream, info);
    }
};

}  // namespace gpupool::client
