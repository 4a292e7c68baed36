#include "server/worker/staging.h"

#include <utility>

namespace gpupool::worker {

std::byte* Staging::take() {
    for (int attempt = 0; attempt < 2; ++attempt) {
        {
            const std::lock_guard lock(mutex_);
            if (!free_.empty()) {
                std::byte* chunk = free_.back();
                free_.pop_back();
                return chunk;
            }
        }
        if (!grow()) {
            break;
        }
    }
    return nullptr;
}

bool Staging::grow() {
    if (allocated_bytes_ + kBlockBytes > max_bytes_) {
        return false;
    }
    void* block = nullptr;
    if (driver::call(api_.cuMemHostAlloc, &block, kBlockBytes, static_cast<unsigned>(CU_MEMHOSTALLOC_PORTABLE)) !=
        CUDA_SUCCESS) {
        return false;
    }
    allocated_bytes_ += kBlockBytes;
    const std::lock_guard lock(mutex_);
    for (std::size_t offset = 0; offset + chunk_bytes_ <= kBlockBytes; offset += chunk_bytes_) {
        free_.push_back(static_cast<std::byte*>(block) + offset);
    }
    return true;
}

void Staging::put(std::byte* chunk) {
    {
        const std::lock_guard lock(mutex_);
        if (withholding_) {
            withheld_.push_back(chunk);
            return;
        }
        free_.push_back(chunk);
    }
    returned_();
}

void Staging::withhold() {
    const std::lock_guard lock(mutex_);
    withholding_ = true;
}

std::vector<std::byte*> Staging::release() {
    const std::lock_guard lock(mutex_);
    withholding_ = false;
    return std::exchange(withheld_, {});
}

}  // namespace gpupool::worker
