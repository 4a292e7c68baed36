// The parts that all copies of the client are made of: where the ends lie, when the source is read, and the commands.
//
// Ownership: none.
// Threads: any thread of the application.
// Errors: the driver's.
#pragma once

#include <cstddef>

#include "client/calls/streams.h"
#include "client/core/dispatch/remote.h"
#include "client/core/session/session.h"

namespace gpupool::client::entry {

enum class Waiting { as_synchronous, as_asynchronous };

// When the call reads a source in host memory.
enum class Reads {
    in_order,  // after earlier work that may write it, as the documentation of the call says
    at_once,   // before the call returns, without regard to earlier work
};

// When the source of a copy is read.
// - `may_be_late`: pinned memory of an asynchronous call, which may be read until the copy is complete. Otherwise the
//   call reads it before it returns; a synchronous call first waits for its stream if earlier work may write the
//   source.
// - `late`: read when the copy is ready in its stream, because earlier work may write the source. The stream has been
//   asked to catch up.
struct Reading {
    bool may_be_late = false, late = false;
};

// What a call declares an address to be; `any` for unified addresses.
enum class Side { any, host, device };

// Where an address lies, as far as the client knows.
enum class Place {
    host,
    shared,  // host memory that the worker maps too
    device,
    unknown,  // only the driver knows, for example a module's variable whose address a kernel returned
};

// Which ends of a copy the GPU reads and writes; the client does the others.
struct Route {
    bool to_device, from_device;
    bool to_ask;  // only the driver knows whether this is valid, so the call waits for the reply
};

// Sets `s` to the session. Fails without a usable context.
CUresult begin_copy(Session*& s);

inline CUdeviceptr address_of(const void* host) {
    return reinterpret_cast<CUdeviceptr>(host);
}

// Is it pinned host memory, allocated or registered?
bool is_pinned(const Session& s, const void* address);
// May earlier work, in any stream, still write to the source?
bool is_written_before(Session& s, const void* source, std::size_t bytes);
// Does the stream capture? Then a copy becomes a graph node, which reads and writes host memory when the graph is
// launched.
bool is_capturing(const Session& s, CUstream stream);
// False if the driver would refuse the copy at once.
bool may_copy(const Session& s, CUdeviceptr dst, CUdeviceptr src, std::size_t bytes);

Place place_of(const Session& s, CUdeviceptr address, Side side);
// Is it host memory that the client can access?
bool is_hosts(const Session& s, Place place, CUdeviceptr address);
// The GPU accesses shared memory if it takes part in the copy. In a graph the memory stays what the program declares it
// to be.
Route route_of(Place to, Place from, bool capturing);

// A copy from host to host memory is complete when the call returns, in every call. The driver would wait for it, so
// the client copies itself.
CUresult copy_on_host(std::uint64_t dst, std::uint64_t src, std::size_t bytes, CUstream stream);
// Decides when the source is read, and waits for earlier work, or has the stream catch up with it, where this needs it.
// The copy's memory lies in [lowest, lowest + extent_bytes).
CUresult await_writers(Session& s, const void* source, const void* lowest, std::size_t extent_bytes, CUstream stream,
                       bool asynchronous, Reading& reading);
CUresult to_device(Session& s, CUdeviceptr destination, const void* source, std::size_t bytes, CUstream stream,
                   const Reading& reading);
CUresult from_device(Session& s, void* destination, CUdeviceptr source, std::size_t bytes, CUstream stream, bool wait);
// Makes a node of a copy whose stream captures. `plain`: one row.
CUresult capture_copy(const CUDA_MEMCPY3D& copy, bool plain, CUstream stream);

// Finishes a copy that was sent: waits for it, if the program could notice that it is not complete.
CUresult end_copy(CUresult sent, bool seen, CUstream stream);
// May work of other streams use the destination of a synchronous copy to the device, so that the call has to wait until
// the copy is complete? Work that is ordered after this stream needs no wait.
bool others_see();

// Sends a copy to the host with `transfer`. If the call has to wait for it, the reply follows behind the data and
// carries the error of this copy, even if another thread synchronizes meanwhile.
template <class Call, class... Arguments>
CUresult send_copy_out(Session& s, std::uint64_t transfer, bool wait, CUstream stream, Arguments... arguments) {
    const WaitForReplies until_there(wait);
    const CUresult result = remote<Call>(arguments..., transfer, stream);
    if (result != CUDA_SUCCESS) {
        s.transfers.cancel(transfer);
    } else if (wait) {
        note_complete(stream);
    }
    return result;
}

// A copy of one or more rows, between memory of any kind.
CUresult copy_shaped(const CUDA_MEMCPY3D& given, CUstream stream, Waiting waiting, Reads reads = Reads::in_order);

}  // namespace gpupool::client::entry
