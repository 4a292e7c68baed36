#include "client/core/mapped_memory.h"

#include <mutex>

#include "client/core/remote.h"
#include "common/log.h"

namespace gpupool::client {

CUresult publish_host_memory(Session& session) {
    return session.host_mirrors.publish([&](std::span<const std::byte> record) {
        using Call = calls::gpHostWrite;
        const auto* const data = reinterpret_cast<const unsigned char*>(record.data());
        const std::size_t bytes = record.size();
        const void* const arguments[] = {&data, &bytes};
        // Not through remote(): the watching thread and that of host functions may make no CUDA calls.
        return session.send(Call::kOpcode, false, codec::command_bytes<Call>(arguments),
                            [&](codec::Writer& out) { codec::write_command<Call>(out, arguments); });
    });
}

CUresult mirror_host_memory(Session& session, std::uint64_t address) {
    static auto& making = *new std::mutex;  // one at a time: the second finds it made
    const std::lock_guard lock(making);
    const auto range = session.memory.find(address);
    if (!range || range->on_device() || session.host_mirrors.contains(range->base)) {
        return CUDA_SUCCESS;
    }
    if (range->context == nullptr || !range->context->live) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    CUresult result = remote<calls::gpHostMirror>(range->context->handle, range->base, range->bytes);
    if (result == CUDA_SUCCESS && !session.host_mirrors.add(range->base, range->bytes)) {
        remote<calls::gpHostUnmirror>(range->base);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result != CUDA_SUCCESS) {
        log::warn("no mirror of {} bytes of mapped host memory at {:#x}: {}", range->bytes, range->base,
                  static_cast<int>(result));
        return result;
    }
    session.host_mirrors.watch([&session] { return publish_host_memory(session) == CUDA_SUCCESS; });
    return CUDA_SUCCESS;
}

CUresult end_mirror(Session& session, std::uint64_t base) {
    if (!session.host_mirrors.contains(base)) {
        return CUDA_SUCCESS;
    }
    session.host_mirrors.remove(base);
    return remote<calls::gpHostUnmirror>(base);
}

}  // namespace gpupool::client
