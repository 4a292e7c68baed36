#include "server/softgpu/exec/grid.h"

#include <sched.h>

#include <algorithm>
#include <new>
#include <thread>

namespace gpupool::softgpu {
namespace {

constexpr std::uint32_t kSliceSteps = 2000;
// After this many slices a block may be waiting for one that has not started.
constexpr std::uint32_t kTimeoutSlices = 500;
constexpr std::size_t kMaxResidents = 32;

}  // namespace

Grid::Grid(const LaunchState& launch, bool cooperative, const std::atomic<bool>& stop, Multiprocessors on)
    : launch_(launch),
      cooperative_(cooperative),
      stop_(stop),
      on_(on),
      cluster_count_(std::uint64_t{launch.grid[0] / launch.cluster[0]} * (launch.grid[1] / launch.cluster[1]) *
                     (launch.grid[2] / launch.cluster[2])) {}

void Grid::record(const Fault& fault) {
    const Lock lock(mutex_);
    if (fault_.kind == FaultKind::none) {
        fault_ = fault;
    }
    faulted_.store(true, std::memory_order_relaxed);
}

bool Grid::start_cluster(std::vector<Resident>& residents, std::uint32_t executor) {
    const std::uint64_t number = next_cluster_.fetch_add(1, std::memory_order_relaxed);
    if (number >= cluster_count_) {
        return false;
    }
    const std::uint32_t* extent = launch_.cluster;
    const std::uint32_t count = extent[0] * extent[1] * extent[2];
    auto free = std::find_if(residents.begin(), residents.end(), [](const Resident& r) { return !r.active; });
    if (free == residents.end()) {
        residents.emplace_back();
        free = residents.end() - 1;
        free->cluster = std::make_unique<Cluster>();
        for (std::uint32_t rank = 0; rank < count; ++rank) {
            free->runners.push_back(std::make_unique<BlockRunner>(launch_, executor));
            free->cluster->blocks.push_back(free->runners.back().get());
            free->cluster->shared.push_back(free->runners.back()->shared());
        }
        for (std::uint32_t rank = 0; rank < count; ++rank) {
            free->runners[rank]->join(*free->cluster, rank);
        }
    }
    free->cluster->arrived = 0;
    free->cluster->parity = false;
    const std::uint64_t across = launch_.grid[0] / extent[0], down = launch_.grid[1] / extent[1];
    const auto x = static_cast<std::uint32_t>(number % across) * extent[0];
    const auto y = static_cast<std::uint32_t>(number / across % down) * extent[1];
    const auto z = static_cast<std::uint32_t>(number / across / down) * extent[2];
    const std::uint32_t turn = on_.count == 0 ? executor : static_cast<std::uint32_t>(number % on_.count);
    for (std::uint32_t rank = 0; rank < count; ++rank) {
        free->runners[rank]->run_on(on_.numbers == nullptr ? turn : on_.numbers[turn]);
        const std::uint32_t index[3] = {x + rank % extent[0], y + rank / extent[0] % extent[1],
                                        z + rank / extent[0] / extent[1]};
        free->runners[rank]->begin(index);
    }
    free->finished.assign(count, false);
    free->active = true;
    free->slices = 0;
    return true;
}

Progress Grid::run_slice(Resident& resident, bool& paused) {
    bool all_finished = true, all_wait = true;
    for (std::size_t rank = 0; rank < resident.runners.size(); ++rank) {
        if (resident.finished[rank]) {
            continue;
        }
        const Progress progress = resident.runners[rank]->run(kSliceSteps, paused);
        if (progress == Progress::faulted) {
            record(resident.runners[rank]->fault());
            return progress;
        }
        resident.finished[rank] = progress == Progress::finished;
        all_finished &= progress == Progress::finished;
        all_wait &= progress == Progress::waiting;
    }
    if (all_finished) {
        return Progress::finished;
    }
    if (!all_wait) {
        return Progress::unfinished;
    }
    record({FaultKind::deadlock, 0, 0, "every thread of a cluster waits at a barrier that can never complete"});
    return Progress::faulted;
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
    const bool has_deadline = launch_.deadline != std::chrono::steady_clock::time_point::max();
    // All blocks of a cooperative grid must be resident at once, since they wait for each other.
    while (cooperative_ && start_cluster(residents, executor)) {
        ++active;
    }
    while (!over()) {
        if (active == 0) {
            if (!more || !(more = start_cluster(residents, executor))) {
                return;
            }
            active = 1;
        }
        bool all_paused = true;
        bool stalled = true;
        for (Resident& resident : residents) {
            if (!resident.active) {
                continue;
            }
            bool paused = false;
            const Progress progress = run_slice(resident, paused);
            if (has_deadline && std::chrono::steady_clock::now() > launch_.deadline) {
                record({FaultKind::timeout, 0, 0, "it ran for longer than the limit"});
                return;
            }
            if (progress == Progress::faulted) {
                return;
            }
            if (progress == Progress::finished) {
                resident.active = false;
                --active;
                stalled = false;
            }
            all_paused &= paused;
            stalled &= ++resident.slices >= kTimeoutSlices;
            if (over()) {
                return;
            }
        }
        if (stalled && more && active < kMaxResidents) {
            more = start_cluster(residents, executor);
            if (more) {
                ++active;
            }
        }
        if (all_paused) {
            sched_yield();
        }
    }
}

Fault Grid::run(const LaunchState& launch, bool cooperative, const std::atomic<bool>& stop, Multiprocessors on) {
    Grid grid(launch, cooperative, stop, on);
    auto& pool = HelperPool::instance();
    std::uint64_t most = std::min<std::uint64_t>(pool.size(), grid.cluster_count() - 1);
    if (on.count != 0) {
        most = std::min<std::uint64_t>(most, on.count - 1);
    }
    const auto helpers = cooperative ? 0 : static_cast<std::uint32_t>(most);
    if (helpers > 0) {
        pool.help(grid, helpers);
    }
    grid.work();
    if (helpers > 0) {
        pool.finish(grid);
    }
    const Lock lock(grid.mutex_);
    if (grid.fault_.kind == FaultKind::none && stop.load()) {
        return {FaultKind::stopped, 0, 0, "the context was destroyed"};
    }
    return grid.fault_;
}

HelperPool& HelperPool::instance() {
    static HelperPool& pool = *new HelperPool;
    return pool;
}

HelperPool::HelperPool() {
    const std::uint32_t processors = std::max(1U, std::thread::hardware_concurrency());
    try {
        for (; size_ < processors - 1; ++size_) {
            std::thread([this] { loop(); }).detach();
        }
    } catch (const std::system_error&) {
        // Continue with the threads that were created; the stream's own thread does the rest.
    }
}

void HelperPool::help(Grid& grid, std::uint32_t helpers) {
    const Lock lock(mutex_);
    offers_.push_back({&grid, helpers, 0});
    offered_.notify_all();
}

void HelperPool::finish(Grid& grid) {
    UniqueLock lock(mutex_);
    const auto offer = [&]() GP_REQUIRES(mutex_) {
        return std::find_if(offers_.begin(), offers_.end(), [&](const Offer& o) { return o.grid == &grid; });
    };
    offer()->wanted = 0;
    left_.wait(lock, [&]() GP_REQUIRES(mutex_) { return offer()->working == 0; });
    offers_.erase(offer());
}

void HelperPool::loop() {
    UniqueLock lock(mutex_);
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
