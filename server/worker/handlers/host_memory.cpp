// Mapped host memory. Helper threads register mirrors, because that takes long, and unregister them, because that waits
// for the GPU.

#include <unistd.h>

#include "protocol/transport/connection.h"
#include "protocol/transport/shm/memory.h"
#include "server/worker/dispatch/helpers.h"
#include "server/worker/handlers/handlers.h"
#include "server/worker/memory/host_mirrors.h"

namespace gpupool::worker::handlers {
namespace {

// Makes the mirror at `address` with `reserve(pages)`, registers its pages, and answers.
template <class Reserve>
Outcome make_mirror(HostMemoryView& session, Command& command, CUcontext client, std::uint64_t address,
                    Reserve reserve) {
    const ContextState* const context = session.objects.context(client);
    if (context == nullptr || context->ending) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    HostMirrors::Pages pages;
    if (const CUresult reserved = reserve(pages); reserved != CUDA_SUCCESS) {
        return reserved;
    }
    const driver::Api& api = session.api;
    const auto result = std::make_shared<CUresult>(CUDA_SUCCESS);
    session.helpers.run(
        [&api, driver = context->driver, pages, result] {
            *result = in_context(api, driver, [&] {
                return driver::call(api.cuMemHostRegister_v2, pages.start, pages.bytes,
                                    static_cast<unsigned>(CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP));
            });
            CUdeviceptr seen = 0;
            if (*result == CUDA_SUCCESS) {
                *result = driver::call(api.cuMemHostGetDevicePointer_v2, &seen, pages.start, 0u);
            }
            // Kernels get the client's address, so it must be the GPU's address as well.
            if (*result == CUDA_SUCCESS && seen != reinterpret_cast<CUdeviceptr>(pages.start)) {
                driver::call(api.cuMemHostUnregister, pages.start);
                *result = CUDA_ERROR_NOT_SUPPORTED;
            }
        },
        [&session, command, address, result] {
            if (*result == CUDA_SUCCESS) {
                session.host_mirrors.registered(address);
            } else {
                session.host_mirrors.release(address);
            }
            session.answers.give(command, *result);
        });
    return Outcome::answered();
}

}  // namespace

Outcome gpHostMirror(HostMemoryView& session, Command& command, codec::Slots<calls::gpHostMirror>& slots) {
    using Call = calls::gpHostMirror;
    const CUcontext client = slots.at<Call::context>().value;
    const std::uint64_t address = slots.at<Call::address>().value;
    return make_mirror(session, command, client, address, [&](HostMirrors::Pages& pages) {
        return session.host_mirrors.reserve(address, slots.at<Call::bytes>().value, client, pages);
    });
}

Outcome gpHostShare(HostMemoryView& session, Command& command, codec::Slots<calls::gpHostShare>& slots) {
    using Call = calls::gpHostShare;
    const CUcontext client = slots.at<Call::context>().value;
    const std::uint64_t address = slots.at<Call::address>().value;
    const std::uint64_t bytes = slots.at<Call::bytes>().value;
    const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
    const auto file = session.connection->take_given(address);
    const Status checked = !file ? Status(file.error()) : transport::shm::check_memory(file->get(), bytes);
    if (!checked) {
        session.answers.violation(command, checked.error().message);
        return Outcome::answered();
    }
    if (address % page != 0 || bytes % page != 0 || bytes == 0 || address > ~std::uint64_t{0} - bytes) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    // Registering allocates all of its pages: the client must have done so, to be charged for them.
    if (!transport::shm::is_populated(file->get(), bytes)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return make_mirror(session, command, client, address, [&](HostMirrors::Pages& pages) {
        return session.host_mirrors.share(address, bytes, client, file->get(), pages);
    });
}

Outcome gpHostUnmirror(HostMemoryView& session, Command& command, codec::Slots<calls::gpHostUnmirror>& slots) {
    const std::uint64_t address = slots.at<calls::gpHostUnmirror::address>().value;
    CUcontext client = nullptr;
    const HostMirrors::Pages pages = session.host_mirrors.retire(address, client);
    if (pages.start == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const ContextState* const context = session.objects.context(client);
    const auto result = std::make_shared<CUresult>(CUDA_SUCCESS);
    auto unregister = [&api = session.api, driver = context == nullptr ? nullptr : context->driver, pages, result] {
        *result = in_context(api, driver, [&] { return driver::call(api.cuMemHostUnregister, pages.start); });
    };
    auto done = [&session, command, address, result] {
        session.host_mirrors.release(address);
        session.answers.give(command, *result);
    };
    // Held work of another context may still use the memory.
    session.gate.after_all([&session, unregister = std::move(unregister), done = std::move(done)] {
        session.waiting_calls.run(unregister, done);
    });
    return Outcome::answered();
}

Outcome gpHostWrite(HostMemoryView& session, Command&, codec::Slots<calls::gpHostWrite>& slots) {
    const auto& data = slots.at<calls::gpHostWrite::data>();
    return session.host_mirrors.write(std::as_bytes(std::span(data.object))) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace gpupool::worker::handlers
