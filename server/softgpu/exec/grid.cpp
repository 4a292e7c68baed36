#include "server/softgpu/exec/grid.h"

#include <sched.h>

#include <algorithm>
#include <new>
#include <thread>

namespace gpupool::softgpu {
namespace {

constexpr std::uint32_t slice_steps = 2000;
// A block that has had this many slices may be waiting for one that has not started.
constexpr std::uint32_t patience_slices = 500;
constexpr std::size_t max_company = 32;

}  // namespace

Grid::Grid(const LaunchState& launch, bool cooperative, const std::atomic<bool>& stop)
    : launch_(launch),
      cooperative_(cooperative),
      stop_(stop),
      block_count_(std::uint64_t{launch.grid[0]} * launch.grid[1] * launch.grid[2]) {}

void Grid::record(const Fault& fault) {
    const std::lock_guard lock(mutex_);
    if (fault_.kind == FaultKind::none) fault_ = fault;
    faulted_.store(true, std::memory_order_relaxed);
}

bool Grid::start_block(std::vector<Resident>& residents, std::uint32_t executor) {
    const std::uint64_t block = next_block_.fetch_add(1, std::memory_order_relaxed);
    if (block >= block_count_) return false;
    auto free = std::find_if(residents.begin(), residents.end(), [](const Resident& r) { return !r.active; });
    if (free == residents.end()) {
        residents.emplace_back();
        free = residents.end() - 1;
        free->runner = std::make_unique<BlockRunner>(launch_, executor);
    }
    free->runner->begin(block);
    free->active = true;
    free->slices = 0;
    return true;
}

void Grid::work() {
    try {
        work_as(next_executor_.fetch_add(1, std::memory_order_relaxed));
    } catch (const std::bad_alloc&) {
        record({FaultKind::out_of_memory, 0, 0, "no memory for a block's registers"});
    }
}

void Grid::work_as(std::uint32_t executor) {
    std::vector<Resident> residents;
    std::size_t active = 0;
    bool more = true;
    // All blocks of a cooperative grid are resident at once: they wait for each other.
    while (cooperative_ && start_block(residents, executor)) ++active;
    while (!over()) {
        if (active == 0) {
            if (!more || !(more = start_block(residents, executor))) return;
            active = 1;
        }
        bool all_paused = true;
        bool impatient = true;
        for (Resident& resident : residents) {
            if (!resident.active) continue;
            bool paused = false;
            const Progress progress = resident.runner->run(slice_steps, paused);
            if (progress == Progress::faulted) return record(resident.runner->fault());
            if (progress == Progress::finished) {
                resident.active = false;
                --active;
                impatient = false;
            }
            all_paused &= paused;
            impatient &= ++resident.slices >= patience_slices;
            if (over()) return;
        }
        if (impatient && more && active < max_company) {
            more = start_block(residents, executor);
            if (more) ++active;
        }
        if (all_paused) sched_yield();
    }
}

Fault Grid::run(const LaunchState& launch, bool cooperative, const std::atomic<bool>& stop) {
    Grid grid(launch, cooperative, stop);
    auto& pool = HelperPool::instance();
    const auto helpers =
        cooperative ? 0 : static_cast<std::uint32_t>(std::min<std::uint64_t>(pool.size(), grid.block_count() - 1));
    if (helpers > 0) pool.help(grid, helpers);
    grid.work();
    if (helpers > 0) pool.finish(grid);
    if (grid.fault_.kind == FaultKind::none && stop.load())
        return {FaultKind::stopped, 0, 0, "the context was destroyed"};
    return grid.fault_;
}

HelperPool& HelperPool::instance() {
    static HelperPool& pool = *new HelperPool;
    return pool;
}

HelperPool::HelperPool() {
    const std::uint32_t processors = std::max(1U, std::thread::hardware_concurrency());
    size_ = processors - 1;
    for (std::uint32_t i = 0; i < size_; ++i) std::thread([this] { loop(); }).detach();
}

void HelperPool::help(Grid& grid, std::uint32_t helpers) {
    const std::lock_guard lock(mutex_);
    offers_.push_back({&grid, helpers, 0});
    offered_.notify_all();
}

void HelperPool::finish(Grid& grid) {
    std::unique_lock lock(mutex_);
    const auto offer = [&] {
        return std::find_if(offers_.begin(), offers_.end(), [&](const Offer& o) { return o.grid == &grid; });
    };
    offer()->wanted = 0;
    left_.wait(lock, [&] { return offer()->working == 0; });
    offers_.erase(offer());
}

void HelperPool::loop() {
    std::unique_lock lock(mutex_);
    for (;;) {
        const auto wanted = std::find_if(offers_.begin(), offers_.end(), [](const Offer& o) { return o.wanted > 0; });
        if (wanted == offers_.end()) {
            offered_.wait(lock);
            continue;
        }
        Grid* grid = wanted->grid;
        --wanted->wanted;
        ++wanted->working;
        lock.unlock();
        grid->work();
        lock.lock();
        const auto mine = std::find_if(offers_.begin(), offers_.end(), [&](const Offer& o) { return o.grid == grid; });
        --mine->working;
        left_.notify_all();
    }
}

}  // namespace gpupool::softgpu
