#include "server/worker/memory/pinned_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace gpupool::worker {

CUresult PinnedMemory::allocate(std::uint64_t bytes, BlockPtr& block) {
    if (bytes > kMaxBytes) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    Piece piece;
    driver::call(api_.cuCtxGetCurrent, &piece.context);
    if (owners_ != nullptr) {
        piece.context = owners_->of(piece.context);
    }
    piece.bytes = std::bit_ceil(std::max(bytes, kLeastBytes));
    {
        const Lock lock(mutex_);
        if (Piece idle; take_idle(piece.context, piece.bytes, idle)) {
            std::memset(idle.memory, 0, idle.bytes);
            block = std::make_shared<Block>(*this, idle);
            return CUDA_SUCCESS;
        }
        if (used_bytes_ > kMaxBytes - piece.bytes) {
            if (!idle_.empty() && !stopped_ && !std::exchange(giving_back_, true)) {
                run_elsewhere_([this] { give_back_idle(); });
            }
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        used_bytes_ += piece.bytes;
        piece.context_number = context_numbers_[piece.context];
    }
    piece.memory = mmap(nullptr, piece.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    if (piece.memory != MAP_FAILED) {
        result = driver::call(api_.cuMemHostRegister_v2, piece.memory, static_cast<std::size_t>(piece.bytes),
                              static_cast<unsigned>(CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP));
        if (result != CUDA_SUCCESS) {
            munmap(piece.memory, piece.bytes);
        }
    }
    if (result != CUDA_SUCCESS) {
        const Lock lock(mutex_);
        used_bytes_ -= piece.bytes;
        return result;
    }
    block = std::make_shared<Block>(*this, piece);
    return CUDA_SUCCESS;
}

bool PinnedMemory::take_idle(CUcontext context, std::uint64_t bytes, Piece& piece) {
    const auto found = std::find_if(idle_.begin(), idle_.end(),
                                    [&](const Piece& idle) { return idle.context == context && idle.bytes == bytes; });
    if (found == idle_.end()) {
        return false;
    }
    piece = *found;
    idle_.erase(found);
    return true;
}

std::uint64_t PinnedMemory::used_bytes() const {
    const Lock lock(mutex_);
    return used_bytes_;
}

void PinnedMemory::stop() {
    const Lock lock(mutex_);
    stopped_ = true;
}

void PinnedMemory::forget(CUcontext context) {
    const Lock lock(mutex_);
    ++context_numbers_[context];
    std::erase_if(idle_, [&](const Piece& idle) GP_REQUIRES(mutex_) {
        if (idle.context != context) {
            return false;
        }
        munmap(idle.memory, idle.bytes);
        used_bytes_ -= idle.bytes;
        return true;
    });
}

void PinnedMemory::free(const Piece& piece) {
    const Lock lock(mutex_);
    if (stopped_) {
        return;
    }
    if (piece.context_number != context_numbers_[piece.context]) {
        munmap(piece.memory, piece.bytes);
        used_bytes_ -= piece.bytes;
    } else {
        idle_.push_back(piece);
    }
}

void PinnedMemory::give_back_idle() {
    std::vector<Piece> pieces;
    {
        const Lock lock(mutex_);
        pieces.swap(idle_);
    }
    for (const Piece& piece : pieces) {
        // If the context has ended meanwhile, the memory is not registered any more.
        if (driver::call(api_.cuCtxSetCurrent, piece.context) == CUDA_SUCCESS) {
            driver::call(api_.cuMemHostUnregister, piece.memory);
        }
        munmap(piece.memory, piece.bytes);
        const Lock lock(mutex_);
        used_bytes_ -= piece.bytes;
    }
    const Lock lock(mutex_);
    giving_back_ = false;
}

}  // namespace gpupool::worker
