#include "server/worker/pinned_memory.h"

#include <sys/mman.h>

#include <algorithm>

namespace gpupool::worker {

CUresult PinnedMemory::allocate(std::uint64_t bytes, BlockPtr& block) {
    if (bytes > kMaxBytes) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    bytes = std::max((bytes + kLeastBytes - 1) / kLeastBytes * kLeastBytes, kLeastBytes);
    {
        const std::lock_guard lock(mutex_);
        if (used_bytes_ > kMaxBytes - bytes) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        used_bytes_ += bytes;
    }
    CUcontext context = nullptr;
    driver::call(api_.cuCtxGetCurrent, &context);
    void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    if (memory != MAP_FAILED) {
        result = driver::call(api_.cuMemHostRegister_v2, memory, static_cast<std::size_t>(bytes),
                              static_cast<unsigned>(CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP));
    }
    if (result != CUDA_SUCCESS) {
        if (memory != MAP_FAILED) {
            munmap(memory, bytes);
        }
        const std::lock_guard lock(mutex_);
        used_bytes_ -= bytes;
        return result;
    }
    block = std::make_shared<Block>(*this, context, memory, bytes);
    return CUDA_SUCCESS;
}

std::uint64_t PinnedMemory::used_bytes() const {
    const std::lock_guard lock(mutex_);
    return used_bytes_;
}

void PinnedMemory::stop() {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
}

void PinnedMemory::free(const Freed& block) {
    {
        const std::lock_guard lock(mutex_);
        if (stopped_) {
            return;
        }
        to_free_.push_back(block);
        if (freeing_) {
            return;
        }
        freeing_ = true;
    }
    run_elsewhere_([this] { free_all(); });
}

void PinnedMemory::free_all() {
    while (true) {
        std::vector<Freed> blocks;
        {
            const std::lock_guard lock(mutex_);
            blocks.swap(to_free_);
            if (blocks.empty()) {
                freeing_ = false;
                return;
            }
        }
        for (const Freed& block : blocks) {
            // Of a context that has ended it is registered no more.
            if (driver::call(api_.cuCtxSetCurrent, block.context) == CUDA_SUCCESS) {
                driver::call(api_.cuMemHostUnregister, block.memory);
            }
            munmap(block.memory, block.bytes);
            const std::lock_guard lock(mutex_);
            used_bytes_ -= block.bytes;
        }
    }
}

}  // namespace gpupool::worker
