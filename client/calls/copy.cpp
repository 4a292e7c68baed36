// Copies. Which end of a copy is on the device follows from what the client knows about its addresses. The client reads
// and writes the host's end itself.

#include <cstring>
#include <vector>

#include "client/calls/copy_shapes.h"
#include "client/calls/handlers.h"
#include "client/calls/streams.h"
#include "client/core/dispatch/remote.h"
#include "client/core/transfers/packed_rows.h"

namespace gpupool::client::entry {
namespace {

enum class Waiting { as_synchronous, as_asynchronous };

CUdeviceptr address_of(const void* host) {
    return reinterpret_cast<CUdeviceptr>(host);
}

bool pinned(const Session& s, const void* address) {
    const auto range = s.memory.find(reinterpret_cast<std::uint64_t>(address));
    return range && !range->on_device();
}

CUresult prepare(Session*& s) {
    CUresult result = CUDA_SUCCESS;
    s = session(result);
    if (s == nullptr) {
        return result;
    }
    ContextState* context = nullptr;
    return usable_context(context);
}

// May earlier work, in any stream, still write to the source?
bool written_before(Session& s, const void* source, std::size_t bytes) {
    return s.host_functions.any_pending() || s.graph_hosts.write() ||
           (pinned(s, source) && (s.transfers.writes_into(source, bytes) ||
                                  s.host_mirrors.device_address(reinterpret_cast<std::uint64_t>(source)) != 0));
}

// When the source of a copy is read.
// - `may_be_late`: pinned memory of an asynchronous call, which may be read until the copy is complete. Otherwise the
//   call reads it before it returns; a synchronous call first waits for its stream if earlier work may write the
//   source.
// - `late`: read when the copy is ready in its stream, because earlier work may write the source. The stream has been
//   asked to catch up.
struct Reading {
    bool may_be_late = false, late = false;
};

CUresult await_writers(Session& s, const void* source, const void* lowest, std::size_t extent_bytes, CUstream stream,
                       bool asynchronous, Reading& reading) {
    reading.may_be_late = asynchronous && pinned(s, source);
    if ((asynchronous && !reading.may_be_late) || !written_before(s, lowest, extent_bytes)) {
        return CUDA_SUCCESS;
    }
    reading.late = reading.may_be_late;
    return reading.late ? remote<calls::gpStreamCatchUp>(stream) : synchronize_stream(stream);
}

// Data that is copied into the command is read while other threads wait for the channel. So page it in before.
void touch(const void* source, std::size_t bytes) {
    constexpr std::size_t kPageBytes = 4096;
    const auto* const first = static_cast<const volatile char*>(source);
    for (std::size_t i = 0; i < bytes; i += kPageBytes) {
        (void)first[i];
    }
    (void)first[bytes - 1];
}

CUresult to_device(Session& s, CUdeviceptr destination, const void* source, std::size_t bytes, CUstream stream,
                   bool asynchronous) {
    Reading reading;
    if (const CUresult result = await_writers(s, source, source, bytes, stream, asynchronous, reading);
        result != CUDA_SUCCESS) {
        return result;
    }
    const std::span data(static_cast<const std::byte*>(source), bytes);
    if (!reading.late) {
        give_found_to_gpu(s, data, destination);
    }
    if (bytes <= codec::kMaxInlineBytes && !reading.late) {
        touch(source, bytes);
        return remote<calls::gpCopyToDevice>(destination, bytes, std::uint64_t{0}, std::uint64_t{0},
                                             static_cast<const unsigned char*>(source), bytes, stream);
    }
    // Send ahead only if the worker is not busy: otherwise the data would only occupy its memory. The data follows its
    // command, so this is not possible if the call waits for the command's reply.
    const Transfers::Ahead ahead = !reading.late && s.worker_is_near() && !waits_for_all_replies(s, this_thread())
                                       ? s.transfers.begin_upload_ahead(data)
                                       : Transfers::Ahead{s.transfers.begin_upload(data), 0};
    const std::uint64_t transfer = ahead.transfer;
    const CUresult result = remote<calls::gpCopyToDevice>(
        destination, bytes, transfer, ahead.bytes, static_cast<const unsigned char*>(nullptr), std::size_t{0}, stream);
    if (result != CUDA_SUCCESS) {
        s.transfers.cancel(transfer);
        return result;
    }
    s.transfers.send_ahead(ahead);
    trace::add_bytes_sent(bytes);
    if (reading.may_be_late) {
        return CUDA_SUCCESS;
    }
    const trace::Wait waiting(ahead.bytes == bytes ? trace::For::data : trace::For::pull);
    return s.transfers.wait_sent(transfer) ? CUDA_SUCCESS : kSessionLost;
}

bool side_is_seen_at_once(const Session& s, CUmemorytype type, CUdeviceptr address) {
    return type == CU_MEMORYTYPE_DEVICE && is_seen_at_once(s, address);
}

// May work of other streams use the destination of a synchronous copy to the device, so that the call has to wait until
// the copy is complete? Work that is ordered after this stream needs no wait.
bool others_see() {
    const ThreadState& thread = this_thread();
    const ContextState* const context = thread.current();
    return context == nullptr || context->unordered_streams.load(std::memory_order_relaxed) ||
           thread.per_thread_default;
}

// Finishes a copy that was sent: waits for it, if the program could notice that it is not complete.
CUresult end_copy(CUresult sent, bool seen, CUstream stream) {
    return sent == CUDA_SUCCESS && seen ? synchronize_stream(stream) : sent;
}

// Sends a copy to the host. If the call has to wait for it, the reply follows behind the data and carries the error of
// this copy, even if another thread synchronizes meanwhile.
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

CUresult from_device(Session& s, void* destination, CUdeviceptr source, std::size_t bytes, CUstream stream, bool wait) {
    const std::uint64_t transfer = s.transfers.begin_download(destination, bytes);
    trace::add_bytes_received(bytes);
    return send_copy_out<calls::gpCopyFromDevice>(s, transfer, wait, stream, source, bytes);
}

// Does the stream capture? Then a copy becomes a graph node, which reads and writes host memory when the graph is
// launched.
bool captures(const Session& s, CUstream stream) {
    return s.captures.any() && s.captures.find(stream_key(stream));
}

CUDA_MEMCPY3D plain_copy(CUdeviceptr dst, bool to_device, CUdeviceptr src, bool from_device, std::size_t bytes) {
    CUDA_MEMCPY3D copy{};
    copy.srcMemoryType = from_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
    copy.srcDevice = src;
    copy.srcHost = reinterpret_cast<const void*>(src);
    copy.dstMemoryType = to_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
    copy.dstDevice = dst;
    copy.dstHost = reinterpret_cast<void*>(dst);
    copy.WidthInBytes = bytes;
    copy.Height = copy.Depth = 1;
    return copy;
}

CUresult capture_copy(const CUDA_MEMCPY3D& copy, bool plain, CUstream stream) {
    CUDA_MEMCPY3D named = copy;
    const CUresult result = name_host_memory(named);
    return result != CUDA_SUCCESS ? result : remote<calls::gpCaptureCopy>(&named, plain ? 1u : 0u, stream);
}

bool may_copy(const Session& s, CUdeviceptr dst, CUdeviceptr src, std::size_t bytes) {
    return dst != 0 && src != 0 && may_hold(s, dst, bytes) && may_hold(s, src, bytes);
}

// What a call declares an address to be; `any` for unified addresses.
enum class Side { any, host, device };

// Where an address lies, as far as the client knows.
enum class Place {
    host,
    shared,  // host memory that the worker maps too
    device,
    unknown,  // only the driver knows, for example a module's variable whose address a kernel returned
};

Place place_of(const Session& s, CUdeviceptr address, Side side) {
    if (is_idle(s, address)) {
        return Place::unknown;
    }
    if (on_device(s, address)) {
        return s.host_mirrors.is_shared(address) ? Place::shared : Place::device;
    }
    return side == Side::device && !s.memory.find(address) ? Place::unknown : Place::host;
}

bool is_hosts(const Session& s, Place place, CUdeviceptr address) {
    return place == Place::host || place == Place::shared ||
           (place == Place::device && is_gpus_host_memory(s, address));
}

// A copy from host to host memory is complete when the call returns, in every call. The driver would wait for it, so
// the client copies itself.
CUresult copy_on_host(std::uint64_t dst, std::uint64_t src, std::size_t bytes, CUstream stream) {
    const CUresult result = synchronize_stream(stream);
    if (result == CUDA_SUCCESS) {
        std::memmove(reinterpret_cast<void*>(dst), reinterpret_cast<const void*>(src), bytes);
    }
    return result;
}

// Which ends of a copy the GPU reads and writes; the client does the others.
struct Route {
    bool to_device, from_device;
    bool to_ask;  // only the driver knows whether this is valid, so the call waits for the reply
};

// The GPU accesses shared memory if it takes part in the copy. In a graph the memory stays what the program declares it
// to be.
Route route_of(Place to, Place from, bool capturing) {
    const auto surely_on_device = [](Place place) { return place == Place::device || place == Place::unknown; };
    const bool shared_is_gpus = !capturing && (surely_on_device(to) || surely_on_device(from));
    const auto on_device = [&](Place place) {
        return surely_on_device(place) || (place == Place::shared && shared_is_gpus);
    };
    return {on_device(to), on_device(from), to == Place::unknown || from == Place::unknown};
}

CUresult copy_plain(CUdeviceptr dst, Side dst_side, CUdeviceptr src, Side src_side, std::size_t bytes, CUstream stream,
                    Waiting waiting) {
    Session* s = nullptr;
    if (const CUresult result = prepare(s); result != CUDA_SUCCESS) {
        return result;
    }
    if (bytes == 0) {
        return CUDA_SUCCESS;
    }
    if (!may_copy(*s, dst, src, bytes)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const bool capturing = captures(*s, stream);
    const Place to = place_of(*s, dst, dst_side), from = place_of(*s, src, src_side);
    if (!capturing && is_hosts(*s, to, dst) && is_hosts(*s, from, src)) {
        return copy_on_host(s->host_mirrors.program_address(dst), s->host_mirrors.program_address(src), bytes, stream);
    }
    const Route route = route_of(to, from, capturing);
    const WaitForReplies until_known(route.to_ask);
    const bool asynchronous = waiting == Waiting::as_asynchronous;
    void* const host_dst = reinterpret_cast<void*>(dst);
    const void* const host_src = reinterpret_cast<const void*>(src);
    if (route.to_device && route.from_device) {
        const CUresult sent = remote<calls::cuMemcpyDtoDAsync_v2>(dst, src, bytes, stream);
        const bool seen = !asynchronous && (is_seen_at_once(*s, dst) || is_seen_at_once(*s, src));
        return end_copy(sent, seen, stream);
    }
    if (capturing) {
        return capture_copy(plain_copy(dst, route.to_device, src, route.from_device, bytes), true, stream);
    }
    if (route.to_device) {
        const CUresult sent = to_device(*s, dst, host_src, bytes, stream, asynchronous);
        return end_copy(sent, !asynchronous && (others_see() || is_seen_at_once(*s, dst)), stream);
    }
    return from_device(*s, host_dst, src, bytes, stream, !asynchronous || !pinned(*s, host_dst));
}

// ---- shaped copies

// Calls visit(place, done, count) for each part of a row that has some of the packed bytes [offset, offset + bytes):
// `count` bytes at `place`, which follow `done` earlier ones.
template <class Visit>
void each_part(const CUDA_MEMCPY3D& c, const HostSide& side, std::uint64_t offset, std::size_t bytes, Visit visit) {
    each_part_of_rows(c.WidthInBytes, c.Height, offset, bytes,
                      [&](std::uint64_t row, std::uint64_t slice, std::uint64_t within, std::size_t done,
                          std::size_t count) { visit(side.row(row, slice) + within, done, count); });
}

// The address range from the beginning of the first row to the end of the last one.
std::pair<std::uint64_t, std::uint64_t> extent_of(const CUDA_MEMCPY3D& c, const HostSide& side) {
    return {reinterpret_cast<std::uint64_t>(side.row(0, 0)),
            reinterpret_cast<std::uint64_t>(side.row(c.Height - 1, c.Depth - 1)) + c.WidthInBytes};
}

// `late`: the rows are read when the copy is ready in its stream.
CUresult shaped_to_device(Session& s, const CUDA_MEMCPY3D& c, std::size_t bytes, CUstream stream, bool late) {
    const HostSide side = source_of(c);
    const auto pack = [c, side](std::uint64_t offset, std::span<std::byte> packed) {
        each_part(c, side, offset, packed.size(), [&](const char* place, std::size_t done, std::size_t count) {
            std::memcpy(packed.data() + done, place, count);
        });
    };
    std::uint64_t transfer = 0;
    if (late) {
        const auto [lowest, highest] = extent_of(c, side);
        transfer = s.transfers.begin_upload(bytes, lowest, highest, pack);
    } else {
        if (bytes <= codec::kMaxInlineBytes) {
            std::vector<std::byte>& packed = this_thread().packed_rows;
            packed.resize(bytes);
            pack(0, packed);
            give_found_to_gpu(s, packed, c.dstDevice + c.dstXInBytes);
            return remote<calls::gpCopyShapedToDevice>(
                &c, std::uint64_t{0}, reinterpret_cast<const unsigned char*>(packed.data()), bytes, stream);
        }
        std::vector<std::byte> packed(bytes);
        pack(0, packed);
        give_found_to_gpu(s, packed, c.dstDevice + c.dstXInBytes);
        transfer = s.transfers.begin_upload(std::move(packed));
    }
    const CUresult result = remote<calls::gpCopyShapedToDevice>(
        &c, transfer, static_cast<const unsigned char*>(nullptr), std::size_t{0}, stream);
    trace::add_bytes_sent(bytes);
    if (result != CUDA_SUCCESS) {
        s.transfers.cancel(transfer);
    }
    return result;
}

CUresult shaped_from_device(Session& s, const CUDA_MEMCPY3D& c, std::size_t bytes, CUstream stream, bool wait) {
    const HostSide side = destination_of(c);
    const auto [lowest, highest] = extent_of(c, side);
    const auto unpack = [c, side](std::uint64_t offset, std::span<const std::byte> packed) {
        each_part(c, side, offset, packed.size(), [&](char* place, std::size_t done, std::size_t count) {
            std::memcpy(place, packed.data() + done, count);
        });
    };
    const std::uint64_t transfer = s.transfers.begin_download(bytes, lowest, highest, unpack);
    trace::add_bytes_received(bytes);
    return send_copy_out<calls::gpCopyShapedFromDevice>(s, transfer, wait, stream, &c);
}

// The client makes copies from host to host memory. In others the GPU itself reads and writes shared host memory, in
// stream order.
void choose_sides(const Session& s, CUDA_MEMCPY3D& c) {
    const auto is_on_host = [&s](CUmemorytype type, CUdeviceptr device) {
        return type == CU_MEMORYTYPE_HOST || (type == CU_MEMORYTYPE_DEVICE && is_gpus_host_memory(s, device));
    };
    if (is_on_host(c.srcMemoryType, c.srcDevice) && is_on_host(c.dstMemoryType, c.dstDevice)) {
        const auto take = [&s](CUmemorytype& type, CUdeviceptr device, auto& host) {
            if (type == CU_MEMORYTYPE_DEVICE) {
                type = CU_MEMORYTYPE_HOST;
                host = reinterpret_cast<void*>(s.host_mirrors.program_address(device));
            }
        };
        take(c.srcMemoryType, c.srcDevice, c.srcHost);
        take(c.dstMemoryType, c.dstDevice, c.dstHost);
        return;
    }
    const auto use = [&s](CUmemorytype& type, CUdeviceptr& device, const void* host) {
        if (type == CU_MEMORYTYPE_HOST && s.host_mirrors.is_shared(address_of(host))) {
            type = CU_MEMORYTYPE_DEVICE;
            device = address_of(host);
        }
    };
    use(c.srcMemoryType, c.srcDevice, c.srcHost);
    use(c.dstMemoryType, c.dstDevice, c.dstHost);
}

CUresult copy_shaped(const CUDA_MEMCPY3D& given, CUstream stream, Waiting waiting) {
    Session* s = nullptr;
    if (const CUresult result = prepare(s); result != CUDA_SUCCESS) {
        return result;
    }
    CUDA_MEMCPY3D c = given;
    resolve_unified(*s, c);
    if (is_empty(c)) {
        return CUDA_SUCCESS;
    }
    if (is_too_large(c)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (captures(*s, stream)) {
        return capture_copy(c, false, stream);
    }
    choose_sides(*s, c);
    const bool from_host = c.srcMemoryType == CU_MEMORYTYPE_HOST, to_host = c.dstMemoryType == CU_MEMORYTYPE_HOST;
    if ((from_host && c.srcPitch != 0 && c.srcPitch < c.WidthInBytes + c.srcXInBytes && c.Height > 1) ||
        (to_host && c.dstPitch != 0 && c.dstPitch < c.WidthInBytes + c.dstXInBytes && c.Height > 1)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const std::size_t bytes = c.WidthInBytes * c.Height * c.Depth;
    const bool asynchronous = waiting == Waiting::as_asynchronous;
    if (from_host && to_host) {
        const CUresult result = synchronize_stream(stream);
        if (result == CUDA_SUCCESS) {
            const HostSide from = source_of(c), to = destination_of(c);
            each_part_of_rows(c.WidthInBytes, c.Height, 0, bytes, [&](auto row, auto slice, auto, auto, auto) {
                std::memmove(to.row(row, slice), from.row(row, slice), c.WidthInBytes);
            });
        }
        return result;
    }
    if (from_host) {
        const auto [lowest, highest] = extent_of(c, source_of(c));
        Reading reading;
        if (const CUresult result = await_writers(*s, c.srcHost, reinterpret_cast<const void*>(lowest),
                                                  highest - lowest, stream, asynchronous, reading);
            result != CUDA_SUCCESS) {
            return result;
        }
        const CUresult sent = shaped_to_device(*s, c, bytes, stream, reading.late);
        const bool seen = !asynchronous && (others_see() || side_is_seen_at_once(*s, c.dstMemoryType, c.dstDevice));
        return end_copy(sent, seen, stream);
    }
    if (to_host) {
        return shaped_from_device(*s, c, bytes, stream, !asynchronous || !pinned(*s, c.dstHost));
    }
    const CUresult sent = remote<calls::gpCopyShapedOnDevice>(&c, stream);
    const bool seen = !asynchronous && (side_is_seen_at_once(*s, c.srcMemoryType, c.srcDevice) ||
                                        side_is_seen_at_once(*s, c.dstMemoryType, c.dstDevice));
    return end_copy(sent, seen, stream);
}

CUDA_MEMCPY3D as_3d(const CUDA_MEMCPY2D& c) {
    CUDA_MEMCPY3D out{};
    out.srcXInBytes = c.srcXInBytes;
    out.srcY = c.srcY;
    out.srcMemoryType = c.srcMemoryType;
    out.srcHost = c.srcHost;
    out.srcDevice = c.srcDevice;
    out.srcArray = c.srcArray;
    out.srcPitch = c.srcPitch;
    out.dstXInBytes = c.dstXInBytes;
    out.dstY = c.dstY;
    out.dstMemoryType = c.dstMemoryType;
    out.dstHost = c.dstHost;
    out.dstDevice = c.dstDevice;
    out.dstArray = c.dstArray;
    out.dstPitch = c.dstPitch;
    out.WidthInBytes = c.WidthInBytes;
    out.Height = c.Height;
    out.Depth = 1;
    return out;
}

CUresult copy_2d(const CUDA_MEMCPY2D* copy, CUstream stream, Waiting waiting) {
    return copy == nullptr ? CUDA_ERROR_INVALID_VALUE : copy_shaped(as_3d(*copy), stream, waiting);
}

CUresult copy_3d(const CUDA_MEMCPY3D* copy, CUstream stream, Waiting waiting) {
    return copy == nullptr ? CUDA_ERROR_INVALID_VALUE : copy_shaped(*copy, stream, waiting);
}

CUresult to_array(CUarray array, std::size_t offset, const void* source, std::size_t bytes, CUstream stream,
                  Waiting waiting) {
    CUDA_MEMCPY3D copy{};
    copy.srcMemoryType = CU_MEMORYTYPE_HOST;
    copy.srcHost = source;
    copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
    copy.dstArray = array;
    copy.dstXInBytes = offset;
    copy.WidthInBytes = bytes;
    copy.Height = copy.Depth = 1;
    return copy_shaped(copy, stream, waiting);
}

CUresult from_array(void* destination, CUarray array, std::size_t offset, std::size_t bytes, CUstream stream,
                    Waiting waiting) {
    CUDA_MEMCPY3D copy{};
    copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
    copy.srcArray = array;
    copy.srcXInBytes = offset;
    copy.dstMemoryType = CU_MEMORYTYPE_HOST;
    copy.dstHost = destination;
    copy.WidthInBytes = bytes;
    copy.Height = copy.Depth = 1;
    return copy_shaped(copy, stream, waiting);
}

bool is_known(CUdeviceptr address, std::size_t bytes) {
    CUresult result = CUDA_SUCCESS;
    const Session* const s = session(result);
    return s != nullptr && surely_holds(*s, address, bytes);
}

bool is_live(CUcontext handle) {
    CUresult result = CUDA_SUCCESS;
    const Session* const s = session(result);
    const ContextState* const context = s == nullptr ? nullptr : s->contexts.find(handle);
    return context != nullptr && context->live.load(std::memory_order_relaxed);
}

}  // namespace

CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, std::size_t ByteCount) {
    return copy_plain(dst, Side::any, src, Side::any, ByteCount, nullptr, Waiting::as_synchronous);
}
CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, std::size_t ByteCount, CUstream hStream) {
    return copy_plain(dst, Side::any, src, Side::any, ByteCount, hStream, Waiting::as_asynchronous);
}
CUresult cuMemcpyHtoD_v2(CUdeviceptr dstDevice, const void* srcHost, std::size_t ByteCount) {
    return copy_plain(dstDevice, Side::device, address_of(srcHost), Side::host, ByteCount, nullptr,
                      Waiting::as_synchronous);
}
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dstDevice, const void* srcHost, std::size_t ByteCount, CUstream hStream) {
    return copy_plain(dstDevice, Side::device, address_of(srcHost), Side::host, ByteCount, hStream,
                      Waiting::as_asynchronous);
}
CUresult cuMemcpyDtoH_v2(void* dstHost, CUdeviceptr srcDevice, std::size_t ByteCount) {
    return copy_plain(address_of(dstHost), Side::host, srcDevice, Side::device, ByteCount, nullptr,
                      Waiting::as_synchronous);
}
CUresult cuMemcpyDtoHAsync_v2(void* dstHost, CUdeviceptr srcDevice, std::size_t ByteCount, CUstream hStream) {
    return copy_plain(address_of(dstHost), Side::host, srcDevice, Side::device, ByteCount, hStream,
                      Waiting::as_asynchronous);
}
CUresult cuMemcpyDtoD_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, std::size_t ByteCount) {
    return copy_plain(dstDevice, Side::device, srcDevice, Side::device, ByteCount, nullptr, Waiting::as_synchronous);
}
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, std::size_t ByteCount, CUstream hStream) {
    Session* s = nullptr;
    const CUresult result = prepare(s);
    if (result != CUDA_SUCCESS || ByteCount == 0) {
        return result;
    }
    if (!may_copy(*s, dstDevice, srcDevice, ByteCount)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (is_gpus_host_memory(*s, dstDevice) && is_gpus_host_memory(*s, srcDevice)) {
        return copy_plain(dstDevice, Side::device, srcDevice, Side::device, ByteCount, hStream,
                          Waiting::as_asynchronous);
    }
    return remote<calls::cuMemcpyDtoDAsync_v2>(dstDevice, srcDevice, ByteCount, hStream);
}
CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D* pCopy) {
    return copy_2d(pCopy, nullptr, Waiting::as_synchronous);
}
CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D* pCopy) {
    return copy_2d(pCopy, nullptr, Waiting::as_synchronous);
}
CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* pCopy, CUstream hStream) {
    return copy_2d(pCopy, hStream, Waiting::as_asynchronous);
}
CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D* pCopy) {
    return copy_3d(pCopy, nullptr, Waiting::as_synchronous);
}
CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D* pCopy, CUstream hStream) {
    return copy_3d(pCopy, hStream, Waiting::as_asynchronous);
}
CUresult cuMemcpyHtoA_v2(CUarray dstArray, std::size_t dstOffset, const void* srcHost, std::size_t ByteCount) {
    return to_array(dstArray, dstOffset, srcHost, ByteCount, nullptr, Waiting::as_synchronous);
}
CUresult cuMemcpyHtoAAsync_v2(CUarray dstArray, std::size_t dstOffset, const void* srcHost, std::size_t ByteCount,
                              CUstream hStream) {
    return to_array(dstArray, dstOffset, srcHost, ByteCount, hStream, Waiting::as_asynchronous);
}
CUresult cuMemcpyAtoH_v2(void* dstHost, CUarray srcArray, std::size_t srcOffset, std::size_t ByteCount) {
    return from_array(dstHost, srcArray, srcOffset, ByteCount, nullptr, Waiting::as_synchronous);
}
CUresult cuMemcpyAtoHAsync_v2(void* dstHost, CUarray srcArray, std::size_t srcOffset, std::size_t ByteCount,
                              CUstream hStream) {
    return from_array(dstHost, srcArray, srcOffset, ByteCount, hStream, Waiting::as_asynchronous);
}

CUresult cuMemcpyAtoA_v2(CUarray dstArray, std::size_t dstOffset, CUarray srcArray, std::size_t srcOffset,
                         std::size_t ByteCount) {
    return remote_or_ask<calls::cuMemcpyAtoA_v2>(dstArray != nullptr && srcArray != nullptr, dstArray, dstOffset,
                                                 srcArray, srcOffset, ByteCount);
}
CUresult cuMemcpyAtoD_v2(CUdeviceptr dstDevice, CUarray srcArray, std::size_t srcOffset, std::size_t ByteCount) {
    return remote_or_ask<calls::cuMemcpyAtoD_v2>(srcArray != nullptr && is_known(dstDevice, ByteCount), dstDevice,
                                                 srcArray, srcOffset, ByteCount);
}
CUresult cuMemcpyDtoA_v2(CUarray dstArray, std::size_t dstOffset, CUdeviceptr srcDevice, std::size_t ByteCount) {
    return remote_or_ask<calls::cuMemcpyDtoA_v2>(dstArray != nullptr && is_known(srcDevice, ByteCount), dstArray,
                                                 dstOffset, srcDevice, ByteCount);
}
CUresult cuMemcpyPeer(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice, CUcontext srcContext,
                      std::size_t ByteCount) {
    return remote_or_ask<calls::cuMemcpyPeer>(
        is_known(dstDevice, ByteCount) && is_known(srcDevice, ByteCount) && is_live(dstContext) && is_live(srcContext),
        dstDevice, dstContext, srcDevice, srcContext, ByteCount);
}
CUresult cuMemcpyPeerAsync(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice, CUcontext srcContext,
                           std::size_t ByteCount, CUstream hStream) {
    return remote_or_ask<calls::cuMemcpyPeerAsync>(
        is_known(dstDevice, ByteCount) && is_known(srcDevice, ByteCount) && is_live(dstContext) && is_live(srcContext),
        dstDevice, dstContext, srcDevice, srcContext, ByteCount, hStream);
}

}  // namespace gpupool::client::entry
