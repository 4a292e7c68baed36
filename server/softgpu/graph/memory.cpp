#include "server/softgpu/graph/memory.h"

#include <sys/mman.h>

#include <map>
#include <utility>
#include <vector>

#include "common/mutex.h"

namespace gpupool::softgpu {
namespace {

constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 46;

struct Reservations {
    SharedMutex mutex;
    std::map<std::uint64_t, std::weak_ptr<GraphMemory>> by_begin GP_GUARDED_BY(mutex);
};

Reservations& reservations() {
    static Reservations& instance = *new Reservations;
    return instance;
}

}  // namespace

std::shared_ptr<GraphMemory> GraphMemory::reserve(Device& device, std::uint64_t size_bytes) {
    if (size_bytes == 0 || size_bytes > kMaxBytes) {
        return nullptr;
    }
    void* memory =
        mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        return nullptr;
    }
    const auto address = reinterpret_cast<std::uint64_t>(memory);
    auto result = std::make_shared<GraphMemory>(device, address, size_bytes);
    const Lock lock(reservations().mutex);
    reservations().by_begin[address] = result;
    return result;
}

GraphMemory::GraphMemory(Device& device, std::uint64_t address, std::uint64_t size_bytes)
    : device_(device), address_(address), size_bytes_(size_bytes) {}

GraphMemory::~GraphMemory() {
    release();
    {
        const Lock lock(reservations().mutex);
        reservations().by_begin.erase(address_);
    }
    munmap(reinterpret_cast<void*>(address_), size_bytes_);
}

bool GraphMemory::reserves(std::uint64_t address, std::uint64_t bytes) {
    const SharedLock lock(reservations().mutex);
    auto at = reservations().by_begin.upper_bound(address);
    if (at == reservations().by_begin.begin()) {
        return false;
    }
    const auto memory = (--at)->second.lock();
    if (memory == nullptr || address - memory->address_ >= memory->size_bytes_) {
        return false;
    }
    return bytes <= memory->size_bytes_ - (address - memory->address_);
}

std::shared_ptr<GraphMemory> GraphMemory::find(std::uint64_t address) {
    const SharedLock lock(reservations().mutex);
    const auto found = reservations().by_begin.find(address);
    return found == reservations().by_begin.end() ? nullptr : found->second.lock();
}

bool GraphMemory::is_idle(std::uint64_t address) {
    const SharedLock lock(reservations().mutex);
    auto at = reservations().by_begin.upper_bound(address);
    if (at == reservations().by_begin.begin()) {
        return false;
    }
    const auto memory = (--at)->second.lock();
    return memory != nullptr && address - memory->address_ < memory->size_bytes_ && !memory->held();
}

bool GraphMemory::commit() {
    if (committed_.load()) {
        return true;
    }
    if (!device_.take(counted_bytes())) {
        return false;
    }
    committed_.store(true);
    device_.graph_memory.add(counted_bytes());
    return true;
}

void GraphMemory::release() {
    if (!committed_.exchange(false)) {
        return;
    }
    device_.graph_memory.remove(counted_bytes());
    device_.give(counted_bytes());
}

void GraphMemory::trim(Device& device) {
    std::vector<std::shared_ptr<GraphMemory>>
        all;  // declared outside the lock, since releasing a last reference takes it
    {
        const SharedLock lock(reservations().mutex);
        for (const auto& [begin, weak] : reservations().by_begin) {
            if (auto memory = weak.lock(); memory != nullptr) {
                all.push_back(std::move(memory));
            }
        }
    }
    for (const auto& memory : all) {
        if (&memory->device_ == &device && !memory->held() && memory->launches_.load() == 0) {
            memory->release();
        }
    }
}

CUresult GraphMemory::allocate(Context& context) {
    Allocation allocation{address_,        size_bytes_, MemoryKind::device,           &context,
                          device_.ordinal, 0,           state().next_id.fetch_add(1), 0,
                          nullptr};
    allocation.graph_memory = shared_from_this();
    state().allocations.add(allocation);
    return CUDA_SUCCESS;
}

CUresult GraphMemory::free() {
    Allocation removed;
    if (state().allocations.remove(address_, removed)) {
        release_memory(removed);
    }
    return CUDA_SUCCESS;
}

}  // namespace gpupool::softgpu
