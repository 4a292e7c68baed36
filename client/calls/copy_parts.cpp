#include "client/calls/copy_parts.h"

#include <cstring>

#include "client/calls/copy_shapes.h"

namespace gpupool::client::entry {
namespace {

// Data that is copied into the command is read while other threads wait for the channel. So page it in before.
void touch(const void* source, std::size_t bytes) {
    constexpr std::size_t kPageBytes = 4096;
    const auto* const first = static_cast<const volatile char*>(source);
    for (std::size_t i = 0; i < bytes; i += kPageBytes) {
        (void)first[i];
    }
    (void)first[bytes - 1];
}

}  // namespace

bool is_pinned(const Session& s, const void* address) {
    const auto range = s.memory.find(reinterpret_cast<std::uint64_t>(address));
    return range && !range->on_device();
}

CUresult begin_copy(Session*& s) {
    CUresult result = CUDA_SUCCESS;
    s = session(result);
    if (s == nullptr) {
        return result;
    }
    ContextState* context = nullptr;
    return usable_context(context);
}

bool is_written_before(Session& s, const void* source, std::size_t bytes) {
    return s.host_functions.any_pending() || s.graph_hosts.write() ||
           (is_pinned(s, source) && (s.transfers.writes_into(source, bytes) ||
                                     s.host_mirrors.device_address(reinterpret_cast<std::uint64_t>(source)) != 0));
}

CUresult await_writers(Session& s, const void* source, const void* lowest, std::size_t extent_bytes, CUstream stream,
                       bool asynchronous, Reading& reading) {
    reading.may_be_late = asynchronous && is_pinned(s, source);
    if ((asynchronous && !reading.may_be_late) || !is_written_before(s, lowest, extent_bytes)) {
        return CUDA_SUCCESS;
    }
    reading.late = reading.may_be_late;
    return reading.late ? remote<calls::gpStreamCatchUp>(stream) : synchronize_stream(stream);
}

bool others_see() {
    const ThreadState& thread = this_thread();
    const ContextState* const context = thread.current();
    return context == nullptr || context->unordered_streams.load(std::memory_order_relaxed) ||
           thread.per_thread_default;
}

CUresult end_copy(CUresult sent, bool seen, CUstream stream) {
    return sent == CUDA_SUCCESS && seen ? synchronize_stream(stream) : sent;
}

CUresult to_device(Session& s, CUdeviceptr destination, const void* source, std::size_t bytes, CUstream stream,
                   const Reading& reading) {
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

CUresult from_device(Session& s, void* destination, CUdeviceptr source, std::size_t bytes, CUstream stream, bool wait) {
    const std::uint64_t transfer = s.transfers.begin_download(destination, bytes);
    trace::add_bytes_received(bytes);
    return send_copy_out<calls::gpCopyFromDevice>(s, transfer, wait, stream, source, bytes);
}

bool is_capturing(const Session& s, CUstream stream) {
    return s.captures.any() && s.captures.find(stream_key(stream));
}

CUresult capture_copy(const CUDA_MEMCPY3D& copy, bool plain, CUstream stream) {
    CUDA_MEMCPY3D named = copy;
    const CUresult result = name_host_memory(named);
    return result != CUDA_SUCCESS ? result : remote<calls::gpCaptureCopy>(&named, plain ? 1u : 0u, stream);
}

bool may_copy(const Session& s, CUdeviceptr dst, CUdeviceptr src, std::size_t bytes) {
    return dst != 0 && src != 0 && may_hold(s, dst, bytes) && may_hold(s, src, bytes);
}

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

CUresult copy_on_host(std::uint64_t dst, std::uint64_t src, std::size_t bytes, CUstream stream) {
    const CUresult result = synchronize_stream(stream);
    if (result == CUDA_SUCCESS) {
        std::memmove(reinterpret_cast<void*>(dst), reinterpret_cast<const void*>(src), bytes);
    }
    return result;
}

Route route_of(Place to, Place from, bool capturing) {
    const auto surely_on_device = [](Place place) { return place == Place::device || place == Place::unknown; };
    const bool shared_is_gpus = !capturing && (surely_on_device(to) || surely_on_device(from));
    const auto on_device = [&](Place place) {
        return surely_on_device(place) || (place == Place::shared && shared_is_gpus);
    };
    return {on_device(to), on_device(from), to == Place::unknown || from == Place::unknown};
}

}  // namespace gpupool::client::entry
