// The objects behind the driver's handles, and the registries that validate handles.
//
// Ownership: registries share objects with the work that uses them, so destroying a handle never affects a running
//   kernel. Nothing process-wide is ever destroyed, so that a kernel that never ends cannot make exit hang.
// Threads: any; each object guards itself. Errors: CUresult, as the driver returns them.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/mutex.h"
#include "server/softgpu/api/cuda_api.h"
#include "server/softgpu/exec/compile.h"
#include "server/softgpu/exec/warp.h"

namespace gpupool::softgpu {

// For the entry points, which stand outside all namespaces.
using gpupool::Lock;
using gpupool::SharedLock;
using gpupool::UniqueLock;

// Guards which devices there are, their pools and the references to their primary contexts.
Mutex& state_mutex();
// Guards graphs, captures, and what events were recorded in a capture (server/softgpu/graph/graph.h).
Mutex& graph_mutex();

struct Context;
struct Stream;
using ContextPtr = std::shared_ptr<Context>;
using StreamPtr = std::shared_ptr<Stream>;

// A handle is its object's address. Only registered addresses are dereferenced.
template <class T>
class Registry {
  public:
    void add(const std::shared_ptr<T>& object) {
        const Lock lock(mutex_);
        objects_[object.get()] = object;
    }
    std::shared_ptr<T> find(const void* handle) const {
        const SharedLock lock(mutex_);
        const auto found = objects_.find(handle);
        return found == objects_.end() ? nullptr : found->second;
    }
    std::shared_ptr<T> remove(const void* handle) {
        const Lock lock(mutex_);
        const auto found = objects_.find(handle);
        if (found == objects_.end()) {
            return nullptr;
        }
        auto object = found->second;
        objects_.erase(found);
        return object;
    }
    std::vector<std::shared_ptr<T>> all() const {
        const SharedLock lock(mutex_);
        std::vector<std::shared_ptr<T>> found;
        for (const auto& [handle, object] : objects_) {
            found.push_back(object);
        }
        return found;
    }
    template <class F>
    void remove_if(F which) {
        std::vector<std::shared_ptr<T>> removed;  // destroyed outside the lock
        const Lock lock(mutex_);
        for (auto at = objects_.begin(); at != objects_.end();) {
            if (which(*at->second)) {
                removed.push_back(at->second);
                at = objects_.erase(at);
            } else {
                ++at;
            }
        }
    }

  private:
    mutable SharedMutex mutex_;
    std::unordered_map<const void*, std::shared_ptr<T>> objects_ GP_GUARDED_BY(mutex_);
};

// A point in a stream's work that others can wait for, such as one recording of an event.
struct Moment {
    Mutex mutex;
    Condition reached_changed;
    bool reached GP_GUARDED_BY(mutex) = false;
    std::chrono::steady_clock::time_point at;  // does not change any more once `reached` is set

    void reach();
    bool is_reached();
    void wait(const std::atomic<bool>& stop);
};

// An in-order queue of work. A thread of its own runs it while there is some.
struct Stream : std::enable_shared_from_this<Stream> {
    using Work = std::function<CUresult()>;

    Stream(Context& owner, unsigned stream_flags, int stream_priority);

    Context& context;
    const unsigned flags;
    const int priority;
    const unsigned long long id;
    Mutex attribute_mutex;
    std::map<int, CUstreamAttrValue> attributes GP_GUARDED_BY(attribute_mutex);  // only those that were set

    // Appends work to the queue; blocks while the stream is full. `done` is reached at the same moment at which the
    // stream counts the work as complete, even if a fault made it skip the work.
    std::uint64_t submit(Work work, std::shared_ptr<Moment> done = nullptr);
    void wait_for_space();
    void wait(std::uint64_t sequence);
    bool is_done(std::uint64_t sequence);
    std::uint64_t submitted();
    // No more work will be submitted: an idle thread ends.
    void retire();

  private:
    // Returns false if no thread can be created.
    bool start_thread();
    void run(std::chrono::milliseconds timeout);

    Mutex mutex_;
    Condition changed_;
    struct Entry {
        Work work;
        std::shared_ptr<Moment> done;
    };
    std::deque<Entry> queue_ GP_GUARDED_BY(mutex_);
    std::uint64_t submitted_ GP_GUARDED_BY(mutex_) = 0;
    std::uint64_t completed_ GP_GUARDED_BY(mutex_) = 0;
    bool running_ GP_GUARDED_BY(mutex_) = false;
    bool destroyed_ GP_GUARDED_BY(mutex_) = false;
};

struct Device;

struct MemoryPool {
    int device = 0;
    bool is_default = false;
    std::uint64_t release_threshold_bytes GP_GUARDED_BY(mutex) = 0;
    std::uint64_t most_bytes = 0;  // 0: no limit of its own
    std::atomic<std::uint64_t> used_bytes{0};
    std::atomic<std::uint64_t> used_high_bytes{0};
    // Freed, but still counted as the device's used memory.
    std::uint64_t kept_bytes GP_GUARDED_BY(mutex) = 0;
    std::map<int, int> flags GP_GUARDED_BY(mutex);  // the reuse policies, by attribute
    Mutex mutex;

    // Reserves memory for an allocation, from kept memory first. Returns false if there is not enough.
    bool take(Device& owner, std::uint64_t bytes);
    // Returns an allocation's memory. Keeps at most the release threshold: a driver would release the rest at the next
    // synchronization.
    void give(Device& owner, std::uint64_t bytes);
    // Releases kept memory until at most `least_bytes`, or what is in use, remain.
    void trim(Device& owner, std::uint64_t least_bytes);

  private:
    void keep_up_to(Device& owner, std::uint64_t reserved_bytes) GP_REQUIRES(mutex);
};

// Current and maximum memory of the graphs on one device.
struct GraphMemoryCount {
    std::atomic<std::uint64_t> bytes{0}, high_bytes{0};

    void add(std::uint64_t more);
    void remove(std::uint64_t less) { bytes.fetch_sub(less); }
};

struct Device {
    int ordinal = 0;  // the program's number
    int number = 0;   // the number without CUDA_VISIBLE_DEVICES
    std::uint64_t total_bytes = 0;
    std::atomic<std::uint64_t> used_bytes{0};
    GraphMemoryCount graph_memory;
    ContextPtr primary;
    std::shared_ptr<MemoryPool> default_pool;
    std::shared_ptr<MemoryPool> current_pool GP_GUARDED_BY(state_mutex());

    // Counts memory as used. Returns false if there is not enough.
    bool take(std::uint64_t bytes);
    void give(std::uint64_t bytes) { used_bytes.fetch_sub(bytes); }
};

struct Context : std::enable_shared_from_this<Context> {
    Device* device = nullptr;
    // Of a green context: its device's primary context, which owns all that is made here except streams, and the
    // processors that run the work of its streams. None of these is ordered behind its default stream.
    ContextPtr parent;
    std::vector<std::uint32_t> processors;
    unsigned flags = 0;
    unsigned api_version = 0;
    bool primary = false;
    unsigned long long id = 0;
    std::uint64_t counted_bytes = 0;  // device memory that it takes
    std::atomic<bool> active{false};
    std::atomic<bool> stop{false};  // set: all running work must end
    std::atomic<int> error{CUDA_SUCCESS};
    int references GP_GUARDED_BY(state_mutex()) = 0;  // of a primary context
    std::atomic<int> attached{1};                     // cuCtxAttach, cuCtxDetach
    int of_greens GP_GUARDED_BY(state_mutex()) = 0;   // how many of them green contexts have
    std::map<int, size_t> limits GP_GUARDED_BY(order_mutex);
    CUfunc_cache cache_config = CU_FUNC_CACHE_PREFER_NONE;
    std::map<int, bool> peers GP_GUARDED_BY(order_mutex);

    Mutex order_mutex;  // orders submissions to the legacy stream and to blocking streams
    StreamPtr legacy;
    std::vector<std::weak_ptr<Stream>> streams GP_GUARDED_BY(order_mutex);
    // Size of `streams` at which ended ones are removed.
    std::size_t prune_ended_at GP_GUARDED_BY(order_mutex) = 64;
    Mutex host_function_mutex;     // only one host function of a context runs at a time
    SharedMutex submission_mutex;  // shared by submissions, exclusive in synchronize_exclusively()
    // Per thread: what kernels have room for. A new context has room for kLocalBytes; more takes memory of the device.
    static constexpr std::uint32_t kLocalBytes = 1024, kThreadsPerProcessor = 2048;
    std::atomic<std::uint32_t> local_bytes{kLocalBytes};

    void open();
    void close();
    [[nodiscard]] bool green() const { return parent != nullptr; }
    [[nodiscard]] Context& owner() { return parent != nullptr ? *parent : *this; }
    [[nodiscard]] const Context& owner() const { return parent != nullptr ? *parent : *this; }
    void poison(CUresult code);
    CUresult status() const { return static_cast<CUresult>(owner().error.load()); }
    std::vector<std::weak_ptr<Context>> greens GP_GUARDED_BY(order_mutex);  // of a primary context
    // What all later work of the context waits for. New streams begin with it.
    std::vector<std::shared_ptr<Moment>> awaited GP_GUARDED_BY(order_mutex);
    std::vector<StreamPtr> all_streams() GP_REQUIRES(order_mutex);
    void add_stream(const StreamPtr& stream) GP_REQUIRES(order_mutex);
    // All streams and what they were given so far, those of its green contexts included.
    std::vector<std::pair<StreamPtr, std::uint64_t>> submitted_work();
    void synchronize();
    // Waits for the context's work, as the driver does in calls that load, free or unregister something. Launches,
    // event records and copies of other threads block meanwhile; stream writes, stream waits and queries do not
    // (measured on an H200).
    void synchronize_exclusively();
    // Provides `bytes` of local memory per thread. Calls synchronize_exclusively() if no kernel has needed that much
    // before. False if the device has too little memory.
    bool make_local_room(std::uint32_t bytes);
    // Sets the room. The context's work must be complete.
    bool set_local_room(std::uint32_t bytes) GP_REQUIRES(order_mutex);
};

struct EventCapture;
struct Event {
    Context* context = nullptr;
    ContextPtr keeps;
    unsigned flags = 0;
    Mutex mutex;
    std::shared_ptr<Moment> moment GP_GUARDED_BY(mutex);  // null: never recorded
    // Set: last recorded in a stream capture.
    std::shared_ptr<EventCapture> captured GP_GUARDED_BY(graph_mutex());
};
// Implements cuEventRecord. `external`: if the stream captures, adds a node of its own.
CUresult record_event(CUevent event, CUstream stream, bool external);

// What cuFuncSetBlockShape, cuParamSet* and the like have set.
struct LegacyLaunch {
    unsigned block[3] = {1, 1, 1};
    unsigned shared_bytes = 0;
    std::vector<std::uint8_t> arguments;
    std::size_t argument_bytes = 0;
};

struct Module;
struct Function {
    Module* module = nullptr;
    std::shared_ptr<Module> keeps;
    const CompiledFunction* code = nullptr;
    Mutex mutex;
    int max_dynamic_shared_bytes GP_GUARDED_BY(mutex) = -1;
    int carveout GP_GUARDED_BY(mutex) = -1;
    std::map<int, int> attributes GP_GUARDED_BY(mutex);
    LegacyLaunch legacy GP_GUARDED_BY(mutex);
};

struct Library;
struct TextureReference;
struct Module : std::enable_shared_from_this<Module> {
    explicit Module(ContextPtr in) : context(std::move(in)) {}
    ~Module();

    const ContextPtr context;
    std::shared_ptr<CompiledModule> code;
    std::uint64_t counted_bytes = 0;                            // device memory of the code's variables
    std::vector<std::shared_ptr<TextureReference>> references;  // those of the code, in its order
    Library* library = nullptr;
    Mutex mutex;
    std::unordered_map<const CompiledFunction*, std::shared_ptr<Function>> functions GP_GUARDED_BY(mutex);

    CUresult take(std::shared_ptr<CompiledModule> compiled);
    std::shared_ptr<Function> function(const CompiledFunction& from);
    std::shared_ptr<Function> function(std::string_view name);
};

struct Kernel {
    Library* library = nullptr;
    std::shared_ptr<Library> keeps;
    const CompiledFunction* code = nullptr;
    Mutex mutex;
    std::map<int, int> attributes GP_GUARDED_BY(mutex);
};

struct Library : std::enable_shared_from_this<Library> {
    std::string text;
    unsigned max_registers = 0;            // CU_JIT_MAX_REGISTERS
    std::shared_ptr<CompiledModule> code;  // for queries without a context; the first context runs it
    bool code_taken GP_GUARDED_BY(mutex) = false;
    Mutex mutex;
    std::unordered_map<Context*, std::shared_ptr<Module>> modules GP_GUARDED_BY(mutex);
    std::unordered_map<const CompiledFunction*, std::shared_ptr<Kernel>> kernels GP_GUARDED_BY(mutex);

    CUresult module(const ContextPtr& context, std::shared_ptr<Module>& result);
    std::shared_ptr<Kernel> kernel(const CompiledFunction& from);
    // Those that have a module of it.
    std::vector<ContextPtr> contexts();
};

enum class MemoryKind : std::uint8_t { device, host, registered, managed, mapped, array };

class GraphMemory;

struct Allocation {
    std::uint64_t begin = 0;
    std::uint64_t size_bytes = 0;
    MemoryKind kind = MemoryKind::device;
    Context* context = nullptr;  // null: of none, or of one that has ended
    int device = 0;
    unsigned flags = 0;
    unsigned long long id = 0;
    std::uint64_t counted_bytes = 0;
    std::shared_ptr<MemoryPool> pool;
    std::shared_ptr<GraphMemory> graph_memory;  // set: the range belongs to a graph's memory
    std::uint64_t readers = 0;                  // of a mapping: bit per device that may read and write
    std::uint64_t writers = 0;
    bool sync_memops = false;  // CU_POINTER_ATTRIBUTE_SYNC_MEMOPS

    [[nodiscard]] bool on_host() const { return kind == MemoryKind::host || kind == MemoryKind::registered; }
};

// Every allocation that has an address.
class Allocations {
  public:
    void add(const Allocation& allocation);
    bool find(std::uint64_t address, Allocation& found) const;
    bool set_sync_memops(std::uint64_t address, bool on);
    bool remove(std::uint64_t begin, Allocation& removed);
    // The context has ended: removes and returns the memory that ends with it.
    std::vector<Allocation> end_context(const Context* context);

  private:
    mutable SharedMutex mutex_;
    std::map<std::uint64_t, Allocation> by_begin_ GP_GUARDED_BY(mutex_);
};

struct Array;

struct State {
    std::atomic<bool> initialised{false};
    std::atomic<bool> forked{false};  // in the child of a process that was initialised, where nothing works any more
    std::vector<std::unique_ptr<Device>> devices;
    Registry<Context> contexts;
    Registry<Context> destroyed_contexts;  // kept, since streams and threads may still refer to them
    Registry<Stream> streams;
    Registry<Event> events;
    Registry<Module> modules;
    Registry<Function> functions;
    Registry<Library> libraries;
    Registry<Kernel> kernels;
    Registry<MemoryPool> pools;
    Registry<Array> arrays;
    Allocations allocations;
    std::atomic<unsigned long long> next_id{1};
};
State& state();

// --- First steps of nearly every entry point. Each returns CUDA_SUCCESS, or the error that the entry point returns.
CUresult ready();
// The context that owns new objects: the current one, or the primary context if the current one is green.
CUresult current_context(ContextPtr& result);
// The current one itself, to which streams belong.
CUresult current_stream_context(ContextPtr& result);
CUresult find_device(CUdevice device, Device*& result);
// Resolves NULL, the legacy handle, the per-thread handle, or a stream of the current context.
CUresult find_stream(CUstream handle, StreamPtr& result);
// Creates a stream of the context.
CUresult make_stream(CUstream* result, const ContextPtr& context, unsigned flags, int priority);
std::vector<CUcontext>& context_stack();
bool& in_host_function();

// Submits work in the order that the legacy stream's rules require.
std::uint64_t submit_ordered(const StreamPtr& stream, Stream::Work work, std::shared_ptr<Moment> done = nullptr);
bool is_legacy(const Stream& stream);

// Runs a host function on the calling thread, one at a time per context.
CUresult run_host_function(Context& context, CUhostFn function, void* data);

// Frees what remove() or end_context() returned.
void release_memory(const Allocation& allocation);

}  // namespace gpupool::softgpu

// First lines of an entry point.
#define SOFTGPU_READY() \
    if (const CUresult ready_ = ::gpupool::softgpu::ready(); ready_ != CUDA_SUCCESS) return ready_
#define SOFTGPU_CONTEXT(name)            \
    ::gpupool::softgpu::ContextPtr name; \
    if (const CUresult ready_ = ::gpupool::softgpu::current_context(name); ready_ != CUDA_SUCCESS) return ready_
#define SOFTGPU_STREAM(handle, name)    \
    ::gpupool::softgpu::StreamPtr name; \
    if (const CUresult ready_ = ::gpupool::softgpu::find_stream(handle, name); ready_ != CUDA_SUCCESS) return ready_
#define SOFTGPU_NOT_NULL(pointer) \
    if ((pointer) == nullptr) return CUDA_ERROR_INVALID_VALUE
