#include "client/core/memory/mapped_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <span>
#include <vector>

#include "client/core/dispatch/remote.h"
#include "common/log.h"
#include "common/mutex.h"
#include "protocol/transport/shm/memory.h"

namespace gpupool::client {

namespace {

// Where to search for addresses of host memory that the GPU cannot use yet; empty if there is no such memory.
AddressBounds searched_addresses(const Session& session) {
    return session.memory.hidden_blocks() == 0 ? AddressBounds{}
                                               : AddressBounds{session.memory.host_begin(), session.memory.host_end()};
}

// Held while a mirror is made or host memory is forgotten.
Mutex& mirrors_change() {
    static auto& mutex = *new Mutex;
    return mutex;
}

}  // namespace

CUresult send_host_changes(Session& session) {
    const auto send = [&](std::span<const std::byte> record) {
        using Call = calls::gpHostWrite;
        static_assert(codec::is_core_call<Call>);
        const auto* const data = reinterpret_cast<const unsigned char*>(record.data());
        const std::size_t bytes = record.size();
        const void* const arguments[] = {&data, &bytes};
        // Not remote(): see the header.
        return session.send(Call::kOpcode, Session::Gives::nothing, false, codec::command_bytes<Call>(arguments),
                            [&](codec::Writer& out) { codec::write_command<Call>(out, arguments); });
    };
    return session.host_mirrors.publish(send, [&] {
        return HostMirrors::Search{searched_addresses(session), session.memory.hidden_added()};
    });
}

CUresult publish_host_memory(Session& session) {
    // A second thread waits until the first one has made and filled the mirrors: the addresses that its own command
    // needs may be among those that the first one has found.
    static auto& publishing = *new Mutex;
    const Lock lock(publishing);
    CUresult result = send_host_changes(session);
    // What a new mirror contains may name further memory.
    while (result == CUDA_SUCCESS) {
        const std::vector<std::uint64_t> found = session.host_mirrors.take_found();
        const std::uint64_t made = session.host_mirrors.made();
        std::for_each(found.begin(), found.end(), [&](std::uint64_t address) { give_to_gpu(session, address); });
        if (session.host_mirrors.made() == made) {
            break;
        }
        result = send_host_changes(session);
    }
    return result;
}

void give_found_to_gpu(Session& session, std::span<const std::byte> data, std::uint64_t destination) {
    const AddressBounds searched = searched_addresses(session);
    if (searched.begin < searched.end && data.size() <= kMaxSearchedBytes) {
        find_addresses(data, destination, searched, [&](std::uint64_t address) { give_to_gpu(session, address); });
    }
}

namespace {

// Addresses that neither programs nor drivers use, for mirrors that cannot lie at the program's address.
std::uint64_t take_other_address(std::uint64_t like, std::uint64_t bytes) {
#if defined(__SANITIZE_THREAD__)
    static std::atomic<std::uint64_t> next{0x7fa000000000};  // in the range that ThreadSanitizer leaves to programs
#else
    static std::atomic<std::uint64_t> next{0x300000000000};
#endif
    constexpr std::uint64_t kPage = 64u << 10;
    return next.fetch_add((bytes / kPage + 2) * kPage, std::memory_order_relaxed) + like % kPage;
}

CUresult make_mirror(Session& session, const MemoryRange& range, std::uint64_t device_base) {
    const CUresult result = remote<calls::gpHostMirror>(range.context->handle, CUdeviceptr{device_base}, range.bytes);
    const auto owner =
        range.kind == MemoryKind::registered ? HostMirrors::Owner::application : HostMirrors::Owner::gpupool;
    if (result == CUDA_SUCCESS && !session.host_mirrors.add(range.base, range.bytes, device_base, owner)) {
        remote<calls::gpHostUnmirror>(CUdeviceptr{device_base});
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return result;
}

}  // namespace

void* allocate_shared(Session& session, CUcontext context, std::uint64_t bytes, void* hint) {
    if (!session.connection().can_give()) {
        return nullptr;
    }
    const auto file = transport::shm::SharedMemory::make_file("gpupool-pinned", bytes);
    if (!file) {
        log::warn("pinned memory is not shared with the server: {}", file.error().message);
        return nullptr;
    }
    // Populate all pages, because the worker's driver pins them: they count as this process's memory, as pinned memory
    // does.
    void* const place = mmap(hint, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file->get(), 0);
    if (place == MAP_FAILED) {
        return nullptr;
    }
    // Not inherited by a forked child, as with the driver's own pinned memory: the child would write where the parent's
    // GPU reads.
    madvise(place, bytes, MADV_DONTFORK);
    const auto address = reinterpret_cast<std::uint64_t>(place);
    end_registered(session, address, bytes);
    // The worker takes descriptors in the order of the commands that name them. So the lock is held over a sendmsg and
    // until the worker has answered. Only allocations of pinned memory take it, and they wait for their replies anyway.
    static auto& giving = *new Mutex;
    const Lock lock(giving);
    const Status given = session.connection().give(file->get(), address);
    const CUresult result =
        given ? remote<calls::gpHostShare>(context, CUdeviceptr{address}, bytes) : CUDA_ERROR_NOT_SUPPORTED;
    if (result != CUDA_SUCCESS) {
        log::info("pinned memory of {} bytes is not shared with the server: {}", bytes, static_cast<int>(result));
        munmap(place, bytes);
        return nullptr;
    }
    session.host_mirrors.add_shared(address, bytes);
    return place;
}

CUresult mirror_host_memory(Session& session, std::uint64_t address, bool anywhere) {
    const auto range_to_mirror = [&]() -> std::optional<MemoryRange> {
        if (session.host_mirrors.is_shared(address)) {
            return {};
        }
        const auto range = session.memory.find(address);
        const bool has_one = range && session.host_mirrors.device_address(range->base) != 0;
        return !range || range->on_device() || has_one ? std::nullopt : range;
    };
    if (!range_to_mirror()) {
        return CUDA_SUCCESS;
    }
    const Lock lock(mirrors_change());  // the second thread finds the mirror of the first
    const auto range = range_to_mirror();
    if (!range) {
        return CUDA_SUCCESS;
    }
    if (range->context == nullptr || !range->context->live) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    CUresult result = make_mirror(session, *range, range->base);
    if (result == CUDA_ERROR_NOT_SUPPORTED && anywhere) {
        const std::uint64_t device_base = take_other_address(range->base, range->bytes);
        result = make_mirror(session, *range, device_base);
        if (result == CUDA_SUCCESS) {
            session.memory.add({device_base, range->bytes, MemoryKind::mapped, range->device, range->context});
        }
    }
    if (result != CUDA_SUCCESS) {
        log::warn("no mirror of {} bytes of mapped host memory at {:#x}: {}", range->bytes, range->base,
                  static_cast<int>(result));
        return result;
    }
    session.memory.note_mirrored(range->base);
    session.host_mirrors.start_polling([&session] { return send_host_changes(session) == CUDA_SUCCESS; });
    return CUDA_SUCCESS;
}

void give_to_gpu(Session& session, const CUstreamBatchMemOpParams* operations, unsigned count) {
    if (operations == nullptr || count > kMaxOperations) {
        return;
    }
    for (const CUstreamBatchMemOpParams& each : std::span(operations, count)) {
        switch (each.operation) {
            case CU_STREAM_MEM_OP_WAIT_VALUE_32:
            case CU_STREAM_MEM_OP_WAIT_VALUE_64: give_to_gpu(session, each.waitValue.address); break;
            case CU_STREAM_MEM_OP_WRITE_VALUE_32:
            case CU_STREAM_MEM_OP_WRITE_VALUE_64:
                give_to_gpu(session, each.writeValue.address);
                give_to_gpu(session, each.writeValue.value64);
                break;
            default: break;  // the others contain no address
        }
    }
}

bool forget_host_memory(Session& session, std::uint64_t base) {
    {
        const Lock lock(mirrors_change());
        if (!session.memory.remove(base)) {
            return false;
        }
    }
    end_mirror(session, base);
    return true;
}

void end_registered(Session& session, std::uint64_t address, std::uint64_t bytes) {
    for (const MemoryRange& gone : session.memory.remove_registered(address, bytes)) {
        end_mirror(session, gone.base);
    }
}

CUresult end_mirror(Session& session, std::uint64_t base) {
    const std::uint64_t device_base = session.host_mirrors.device_address(base);
    if (device_base == 0) {
        return CUDA_SUCCESS;
    }
    session.host_mirrors.remove(base);
    if (device_base != base) {
        session.memory.remove(device_base);
    }
    return remote<calls::gpHostUnmirror>(CUdeviceptr{device_base});
}

}  // namespace gpupool::client
