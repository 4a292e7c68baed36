// Kernels that find addresses of host memory: in device memory, in a module's variable, in other host memory, in a
// structure among their arguments, or by adding to another address; and that write to the memory that they find.
// Settings: blocks.
#include <sys/mman.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "tests/gpu/driver.h"
#include "tests/gpu/pinned.h"

using namespace gpupool::programs;

namespace {

// `add_each`: adds `value` to the word behind each of `count` addresses in `table`. `add_each_of_variable`: the same
// with the addresses in the module's variable. `follow`: adds `value` behind the last address of a chain.
constexpr const char* kImage = R"(
.version 7.0
.target sm_50
.address_size 64
.visible .global .align 8 .u64 addresses[64];
.visible .entry add_each(.param .u64 table, .param .u32 count, .param .u32 value) {
    .reg .u64 %t, %a; .reg .u32 %i, %n, %v, %w; .reg .pred %p;
    ld.param.u64 %t, [table]; ld.param.u32 %n, [count]; ld.param.u32 %v, [value]; mov.u32 %i, 0;
next:
    setp.ge.u32 %p, %i, %n; @%p bra done;
    ld.u64 %a, [%t]; ld.u32 %w, [%a]; add.u32 %w, %w, %v; st.u32 [%a], %w;
    add.u64 %t, %t, 8; add.u32 %i, %i, 1; bra next;
done:
    ret;
}
.visible .entry add_each_of_variable(.param .u32 count, .param .u32 value) {
    .reg .u64 %t, %a; .reg .u32 %i, %n, %v, %w; .reg .pred %p;
    mov.u64 %t, addresses; ld.param.u32 %n, [count]; ld.param.u32 %v, [value]; mov.u32 %i, 0;
next:
    setp.ge.u32 %p, %i, %n; @%p bra done;
    ld.global.u64 %a, [%t]; ld.u32 %w, [%a]; add.u32 %w, %w, %v; st.u32 [%a], %w;
    add.u64 %t, %t, 8; add.u32 %i, %i, 1; bra next;
done:
    ret;
}
.visible .entry follow(.param .u64 first, .param .u32 steps, .param .u32 value) {
    .reg .u64 %a; .reg .u32 %n, %v, %w; .reg .pred %p;
    ld.param.u64 %a, [first]; ld.param.u32 %n, [steps]; ld.param.u32 %v, [value];
next:
    setp.eq.u32 %p, %n, 0; @%p bra done;
    ld.u64 %a, [%a]; sub.u32 %n, %n, 1; bra next;
done:
    ld.u32 %w, [%a]; add.u32 %w, %w, %v; st.u32 [%a], %w;
    ret;
}
)";

// Host memory that the GPU can use, of one kind. Registered memory is asked for its device pointer, as its program has
// to where CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM is 0.
class HostWord {
  public:
    enum class Kind { allocated, mapped, registered };

    explicit HostWord(Kind kind) : kind_(kind) {
        constexpr size_t kBytes = 4096;
        if (kind == Kind::registered) {
            memory_ = static_cast<unsigned*>(std::aligned_alloc(kBytes, kBytes));
            DRIVER_OK(cuMemHostRegister(memory_, kBytes, CU_MEMHOSTREGISTER_DEVICEMAP));
            DRIVER_OK(cuMemHostGetDevicePointer(&device_, memory_, 0));
        } else {
            const unsigned flags = kind == Kind::mapped ? CU_MEMHOSTALLOC_DEVICEMAP : 0;
            DRIVER_OK(cuMemHostAlloc(reinterpret_cast<void**>(&memory_), kBytes, flags));
            device_ = address_of(memory_);
        }
        std::memset(memory_, 0, kBytes);
    }
    ~HostWord() {
        if (kind_ == Kind::registered) {
            DRIVER_OK(cuMemHostUnregister(memory_));
            std::free(memory_);
        } else {
            DRIVER_OK(cuMemFreeHost(memory_));
        }
    }
    HostWord(const HostWord&) = delete;
    HostWord& operator=(const HostWord&) = delete;

    [[nodiscard]] unsigned value() const { return *memory_; }
    void set(unsigned value) { *memory_ = value; }
    [[nodiscard]] void* place() const { return memory_; }
    [[nodiscard]] CUdeviceptr device() const { return device_; }

  private:
    Kind kind_;
    unsigned* memory_ = nullptr;
    CUdeviceptr device_ = 0;
};

using Words = std::vector<std::unique_ptr<HostWord>>;

Words make_words(unsigned count, HostWord::Kind kind) {
    Words words;
    for (unsigned i = 0; i < count; i++) {
        words.push_back(std::make_unique<HostWord>(kind));
        words.back()->set(10 * i);
    }
    return words;
}

std::vector<CUdeviceptr> addresses_of(const Words& words) {
    std::vector<CUdeviceptr> addresses;
    for (const auto& word : words) {
        addresses.push_back(word->device());
    }
    return addresses;
}

void expect_added(const Words& words, unsigned added, const char* what) {
    unsigned wrong = 0;
    for (unsigned i = 0; i < words.size(); i++) {
        wrong += words[i]->value() != 10 * i + added;
    }
    check(wrong == 0, "%s: %u of %zu wrong", what, wrong, words.size());
}

class DeviceTable {
  public:
    explicit DeviceTable(size_t bytes) { DRIVER_OK(cuMemAlloc(&memory_, bytes)); }
    ~DeviceTable() { DRIVER_OK(cuMemFree(memory_)); }
    DeviceTable(const DeviceTable&) = delete;
    DeviceTable& operator=(const DeviceTable&) = delete;
    [[nodiscard]] CUdeviceptr get() const { return memory_; }

  private:
    CUdeviceptr memory_ = 0;
};

struct Work {
    CUmodule module;
    CUfunction add_each, add_each_of_variable, follow;
    CUstream stream;
    unsigned blocks;
};

// The ways by which addresses come to device memory.
struct Way {
    const char* name;
    std::function<void(CUdeviceptr to, const std::vector<CUdeviceptr>& addresses)> copy;
};

std::vector<Way> ways_to_copy(CUstream stream) {
    const auto bytes = [](const std::vector<CUdeviceptr>& a) { return a.size() * sizeof a[0]; };
    return {
        {"cuMemcpyHtoD", [=](CUdeviceptr to, const auto& a) { DRIVER_OK(cuMemcpyHtoD(to, a.data(), bytes(a))); }},
        {"cuMemcpy", [=](CUdeviceptr to, const auto& a) { DRIVER_OK(cuMemcpy(to, address_of(a.data()), bytes(a))); }},
        {"cuMemcpyHtoDAsync",
         [=](CUdeviceptr to, const auto& a) { DRIVER_OK(cuMemcpyHtoDAsync(to, a.data(), bytes(a), stream)); }},
        {"cuMemcpyHtoDAsync from pinned memory",
         [=](CUdeviceptr to, const auto& a) {
             void* pinned = nullptr;
             DRIVER_OK(cuMemHostAlloc(&pinned, bytes(a), 0));
             std::memcpy(pinned, a.data(), bytes(a));
             DRIVER_OK(cuMemcpyHtoDAsync(to, pinned, bytes(a), stream));
             DRIVER_OK(cuStreamSynchronize(stream));
             DRIVER_OK(cuMemFreeHost(pinned));
         }},
        {"cuMemcpy2D",
         [=](CUdeviceptr to, const auto& a) {
             CUDA_MEMCPY2D copy{};
             copy.srcMemoryType = CU_MEMORYTYPE_HOST;
             copy.srcHost = a.data();
             copy.srcPitch = copy.dstPitch = copy.WidthInBytes = sizeof a[0];
             copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
             copy.dstDevice = to;
             copy.Height = a.size();
             DRIVER_OK(cuMemcpy2D(&copy));
         }},
        {"a memory operation for each", [=](CUdeviceptr to, const auto& a) {
             for (size_t i = 0; i < a.size(); i++) {
                 DRIVER_OK(cuStreamWriteValue64(stream, to + i * sizeof a[0], a[i], 0));
             }
         }}};
}

void in_device_memory(const Work& work, HostWord::Kind kind) {
    for (const Way& way : ways_to_copy(work.stream)) {
        Words words = make_words(work.blocks, kind);
        const DeviceTable table(work.blocks * sizeof(CUdeviceptr));
        way.copy(table.get(), addresses_of(words));
        for (unsigned round = 1; round <= 2; round++) {
            DRIVER_OK(launch(work.add_each, 1, 1, work.stream, table.get(), work.blocks, 3u));
            DRIVER_OK(cuStreamSynchronize(work.stream));
            expect_added(words, 3 * round, way.name);
        }
    }
}

void in_a_variable(const Work& work) {
    Words words = make_words(work.blocks, HostWord::Kind::mapped);
    CUdeviceptr variable = 0;
    size_t bytes = 0;
    DRIVER_OK(cuModuleGetGlobal(&variable, &bytes, work.module, "addresses"));
    const std::vector<CUdeviceptr> addresses = addresses_of(words);
    DRIVER_OK(cuMemcpyHtoD(variable, addresses.data(), addresses.size() * sizeof addresses[0]));
    DRIVER_OK(launch(work.add_each_of_variable, 1, 1, work.stream, work.blocks, 4u));
    DRIVER_OK(cuStreamSynchronize(work.stream));
    expect_added(words, 4, "addresses in a module's variable");
}

// The first block has the address of the second, and so on. The program writes them before and after the GPU knows the
// first block.
void in_host_memory(const Work& work, HostWord::Kind kind) {
    Words chain = make_words(work.blocks, kind);
    const auto link = [&](unsigned from, CUdeviceptr to) { std::memcpy(chain[from]->place(), &to, sizeof to); };
    const unsigned last = work.blocks - 1;
    for (unsigned i = 0; i < last; i++) {
        link(i, chain[i + 1]->device());
    }
    DRIVER_OK(launch(work.follow, 1, 1, work.stream, chain[0]->device(), last, 5u));
    DRIVER_OK(cuStreamSynchronize(work.stream));
    check(chain[last]->value() == 10 * last + 5, "the end of a chain: %u", chain[last]->value());
    HostWord later(kind);
    link(last - 1, later.device());
    DRIVER_OK(launch(work.follow, 1, 1, work.stream, chain[0]->device(), last, 6u));
    DRIVER_OK(cuStreamSynchronize(work.stream));
    check(later.value() == 6, "an end that was made later: %u", later.value());
}

// Addresses of the inside, and one that the kernel's argument is not aligned with.
void inside(const Work& work) {
    constexpr unsigned kAt = 1000;
    const HostWord word(HostWord::Kind::mapped);
    auto* const words = static_cast<unsigned*>(word.place());
    const DeviceTable table(2 * sizeof(CUdeviceptr));
    const CUdeviceptr addresses[] = {address_of(words + kAt), address_of(words + kAt + 1)};
    // In two parts: the second word's halves arrive separately, the first is whole.
    DRIVER_OK(cuMemcpyHtoD(table.get(), addresses, sizeof addresses[0] + 4));
    DRIVER_OK(cuMemcpyHtoD(table.get() + sizeof addresses[0] + 4, reinterpret_cast<const char*>(addresses) + 12, 4));
    DRIVER_OK(launch(work.add_each, 1, 1, work.stream, table.get(), 2u, 7u));
    DRIVER_OK(cuStreamSynchronize(work.stream));
    check(words[kAt] == 7 && words[kAt + 1] == 7, "words inside of a block: %u, %u", words[kAt], words[kAt + 1]);
}

// Registered memory whose address is in pinned memory.
void registered_in_pinned(const Work& work) {
    constexpr size_t kBytes = 1 << 16;
    void* const place = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    auto* const words = static_cast<unsigned*>(place);
    DRIVER_OK(cuMemHostRegister(place, kBytes, 0));
    {
        const Pinned table(1024);
        for (unsigned round = 1; round <= 3; round++) {
            const CUdeviceptr address = address_of(words + round);
            std::memcpy(table.get() + 2 * round, &address, sizeof address);
            DRIVER_OK(launch(work.add_each, 1, 1, work.stream, address_of(table.get() + 2 * round), 1u, round));
            DRIVER_OK(cuStreamSynchronize(work.stream));
            check(words[round] == round, "registered memory, its address in pinned memory: %u", words[round]);
        }
    }
    DRIVER_OK(cuMemHostUnregister(place));
    munmap(place, kBytes);
}

// Several threads, each with a word of its own that it allocates and frees over and over. Its address is in device
// memory, or in pinned memory.
void several_threads(const Work& work, bool in_pinned) {
    constexpr int kThreads = 3, kRounds = 40;
    std::atomic<int> wrong{0};
    CUcontext context = nullptr;
    DRIVER_OK(cuCtxGetCurrent(&context));
    const auto run = [&] {
        DRIVER_OK(cuCtxSetCurrent(context));
        CUstream stream = nullptr;
        CUdeviceptr slot = 0;
        DRIVER_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        DRIVER_OK(cuMemAlloc(&slot, 8));
        {
            const Pinned table(1024);
            for (unsigned round = 0; round < kRounds; round++) {
                const Pinned word(1024);
                word[0] = round;
                const CUdeviceptr address = address_of(word.get());
                if (in_pinned) {
                    std::memcpy(table.get(), &address, sizeof address);
                } else {
                    DRIVER_OK(cuMemcpyHtoDAsync(slot, &address, sizeof address, stream));
                }
                DRIVER_OK(launch(work.add_each, 1, 1, stream, in_pinned ? address_of(table.get()) : slot, 1u, 5u));
                DRIVER_OK(cuStreamSynchronize(stream));
                wrong += word[0] != round + 5;
                std::memset(table.get(), 0, sizeof address);
            }
        }
        DRIVER_OK(cuMemFree(slot));
        DRIVER_OK(cuStreamDestroy(stream));
    };
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; i++) {
        threads.emplace_back(run);
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    check(wrong == 0, "%d threads with addresses in %s memory: %d wrong", kThreads, in_pinned ? "pinned" : "device",
          wrong.load());
}

}  // namespace

int main(int argc, char** argv) {
    Program program("found_addresses", argc, argv);
    const Device device;
    const Module module(kImage);
    Work work{module.get(),
              module.function("add_each"),
              module.function("add_each_of_variable"),
              module.function("follow"),
              nullptr,
              static_cast<unsigned>(program.number("blocks", 20))};
    DRIVER_OK(cuStreamCreate(&work.stream, CU_STREAM_NON_BLOCKING));
    using Kind = HostWord::Kind;
    program.section("allocated", [&] { in_device_memory(work, Kind::allocated); });
    program.section("mapped", [&] { in_device_memory(work, Kind::mapped); });
    program.section("registered", [&] { in_device_memory(work, Kind::registered); });
    program.section("in_a_variable", [&] { in_a_variable(work); });
    program.section("in_allocated_memory", [&] { in_host_memory(work, Kind::allocated); });
    program.section("in_mapped_memory", [&] { in_host_memory(work, Kind::mapped); });
    program.section("in_registered_memory", [&] { in_host_memory(work, Kind::registered); });
    program.section("registered_in_pinned", [&] { registered_in_pinned(work); });
    program.section("several_threads", [&] { several_threads(work, false); });
    program.section("several_threads_pinned", [&] { several_threads(work, true); });
    program.section("inside", [&] { inside(work); });
    DRIVER_OK(cuStreamDestroy(work.stream));
    return program.finish();
}
