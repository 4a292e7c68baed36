// Pinned and registered host memory that the GPU accesses directly: by its device pointer, by its plain address, in
// kernels, memsets, copies, memory operations and graphs; and a program and a kernel that poll each other's writes.
// Settings: words.
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "tests/gpu/driver.h"
#include "tests/gpu/images.h"
#include "tests/gpu/pinned.h"

using namespace gpupool::programs;

namespace {

struct Work {
    CUfunction add, copy, answer, odd;
    CUstream stream;
    unsigned words;

    CUresult add_to(CUdeviceptr memory, unsigned value) const {
        return launch(add, (words + 127) / 128, 128, stream, memory, words, value);
    }
};

void device_pointer(const Work& work) {
    const Pinned memory(work.words);
    for (unsigned i = 0; i < work.words; i++) {
        memory[i] = 5;
    }
    const CUdeviceptr pointer = memory.device();
    DRIVER_OK(work.add_to(pointer, 3));
    DRIVER_OK(cuStreamSynchronize(work.stream));
    check(memory.differ(8) == 0, "a kernel added to the program's values: %zu wrong", memory.differ(8));
    for (unsigned i = 0; i < work.words; i++) {
        memory[i] += 1;
    }
    DRIVER_OK(work.add_to(pointer, 1));
    DRIVER_OK(work.add_to(pointer, 1));
    DRIVER_OK(cuStreamSynchronize(work.stream));
    check(memory.differ(11) == 0, "the program's next change and two kernels: %zu wrong", memory.differ(11));
}

// With unified addressing no device pointer is needed.
void plain_address(const Work& work) {
    const Pinned memory(work.words, 0), copy(work.words, 0);
    memory[work.words - 1] = 7;
    DRIVER_OK(work.add_to(address_of(memory.get()), 1));
    DRIVER_OK(launch(work.copy, (work.words + 127) / 128, 128, work.stream, address_of(memory.get()),
                     address_of(copy.get()), work.words));
    DRIVER_OK(cuCtxSynchronize());
    check(copy[0] == 1 && copy[work.words - 1] == 8 && memory[work.words - 1] == 8,
          "a kernel from one host block to another: %u, %u", copy[0], copy[work.words - 1]);
    CUdeviceptr base = 0;
    size_t bytes = 0;
    DRIVER_OK(cuMemGetAddressRange(&base, &bytes, address_of(&memory[work.words / 2])));
    check(base == address_of(memory.get()) && bytes == work.words * sizeof(unsigned),
          "cuMemGetAddressRange: begins %lld bytes before, %zu bytes",
          static_cast<long long>(address_of(memory.get()) - base), bytes);
}

void registered(const Work& work) {
    std::vector<unsigned char> heap(work.words * sizeof(unsigned) + 64, 0x11);
    // Not at the start of a page, so that its pages contain other data as well.
    auto* const words = reinterpret_cast<unsigned*>(heap.data() + 32);
    std::memset(words, 0, work.words * sizeof(unsigned));
    DRIVER_OK(cuMemHostRegister(words, work.words * sizeof(unsigned), CU_MEMHOSTREGISTER_DEVICEMAP));
    CUdeviceptr pointer = 0;
    DRIVER_OK(cuMemHostGetDevicePointer(&pointer, words, 0));
    words[1] = 40;
    DRIVER_OK(work.add_to(pointer, 2));
    DRIVER_OK(cuStreamSynchronize(work.stream));
    check(words[0] == 2 && words[1] == 42 && words[work.words - 1] == 2, "registered memory: %u, %u, %u", words[0],
          words[1], words[work.words - 1]);
    DRIVER_OK(cuMemHostUnregister(words));
    check(heap[31] == 0x11 && heap[32 + work.words * sizeof(unsigned)] == 0x11, "its neighbours are unchanged");
}

// Some programs unmap memory without unregistering it, and continue.
void unmapped(const Work& work) {
    const size_t bytes = work.words * sizeof(unsigned);
    void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(memory != MAP_FAILED, "memory to register");
    DRIVER_OK(cuMemHostRegister(memory, bytes, CU_MEMHOSTREGISTER_DEVICEMAP));
    CUdeviceptr pointer = 0;
    DRIVER_OK(cuMemHostGetDevicePointer(&pointer, memory, 0));
    DRIVER_OK(work.add_to(pointer, 2));
    DRIVER_OK(cuStreamSynchronize(work.stream));
    check(static_cast<unsigned*>(memory)[3] == 2, "registered memory: %u", static_cast<unsigned*>(memory)[3]);
    munmap(memory, bytes);
    DRIVER_OK(work.add_to(pointer, 2));
    DRIVER_OK(cuStreamSynchronize(work.stream));
    const Pinned other(work.words);
    DRIVER_OK(work.add_to(other.device(), 1));
    DRIVER_OK(cuStreamSynchronize(work.stream));
    check(other.differ(1) == 0, "the program continues: %zu wrong", other.differ(1));
    cuMemHostUnregister(memory);  // any result is accepted
}

void memsets_and_copies(const Work& work) {
    const Pinned memory(work.words), other(work.words, 0);
    const size_t bytes = work.words * sizeof(unsigned);
    DRIVER_OK(cuMemsetD32Async(address_of(memory.get()), 9, work.words, work.stream));
    DRIVER_OK(work.add_to(memory.device(), 1));
    std::vector<unsigned> pageable(work.words);
    DRIVER_OK(cuMemcpyDtoHAsync(pageable.data(), address_of(memory.get()), bytes, work.stream));
    DRIVER_OK(cuStreamSynchronize(work.stream));
    check(memory.differ(10) == 0, "a memset of host memory and a kernel: %zu wrong", memory.differ(10));
    check(pageable[0] == 10 && pageable[work.words - 1] == 10, "copied from there as if from the device: %u",
          pageable[0]);

    CUdeviceptr block = 0;
    DRIVER_OK(cuMemAlloc(&block, bytes));
    DRIVER_OK(work.add_to(memory.device(), 1));
    DRIVER_OK(cuMemcpyHtoDAsync(block, memory.get(), bytes, work.stream));
    DRIVER_OK(work.add_to(block, 1));
    DRIVER_OK(cuMemcpyDtoHAsync(memory.get(), block, bytes, work.stream));
    DRIVER_OK(work.add_to(memory.device(), 1));
    DRIVER_OK(cuMemcpyAsync(address_of(other.get()), address_of(memory.get()), bytes, work.stream));
    DRIVER_OK(cuStreamSynchronize(work.stream));
    check(memory.differ(13) == 0 && other.differ(13) == 0, "kernels and copies in turn, in one stream: %u and %u",
          memory[0], other[0]);
    memory[0] = 77;
    DRIVER_OK(cuMemcpy(block, address_of(memory.get()), bytes));
    DRIVER_OK(cuMemcpyDtoH(pageable.data(), block, bytes));
    check(pageable[0] == 77 && pageable[1] == 13, "and without a stream: %u, %u", pageable[0], pageable[1]);
    CUDA_MEMCPY2D rows{};
    rows.srcMemoryType = CU_MEMORYTYPE_HOST;
    rows.srcHost = memory.get();
    rows.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    rows.dstDevice = block;
    rows.srcPitch = rows.dstPitch = rows.WidthInBytes = 32;
    rows.Height = 4;
    DRIVER_OK(work.add_to(memory.device(), 1));
    DRIVER_OK(cuMemcpy2DAsync(&rows, work.stream));
    DRIVER_OK(cuMemcpyDtoHAsync(pageable.data(), block, bytes, work.stream));
    DRIVER_OK(cuStreamSynchronize(work.stream));
    check(pageable[0] == 78 && pageable[31] == 14 && pageable[32] == 13, "rows of it: %u, %u, %u", pageable[0],
          pageable[31], pageable[32]);
    // Declared to be device memory, which it is natively, even before the GPU has used it.
    const Pinned from(32), to(32);
    from[0] = 5;
    from[31] = 6;
    rows.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    rows.srcDevice = address_of(from.get());
    DRIVER_OK(cuMemcpy2DAsync(&rows, work.stream));
    rows.srcDevice = block;
    rows.dstDevice = address_of(to.get());
    DRIVER_OK(cuMemcpy2DAsync(&rows, work.stream));
    DRIVER_OK(cuStreamSynchronize(work.stream));
    check(to[0] == 5 && to[31] == 6, "rows of pinned memory by its address: %u, %u", to[0], to[31]);
    DRIVER_OK(cuMemFree(block));
}

// While a kernel writes every other byte, the program writes those between.
void neighbours(const Work& work) {
    const Pinned memory(work.words);
    auto* const bytes = reinterpret_cast<unsigned char*>(memory.get());
    const unsigned count = work.words * 4;
    DRIVER_OK(launch(work.odd, 4, 64, work.stream, memory.device(), count, static_cast<unsigned char>(0xcc)));
    for (unsigned i = 0; i < count; i += 2) {
        // Atomic for ThreadSanitizer: the kernel's adjacent writes may be merged into the same word meanwhile.
        std::atomic_ref(bytes[i]).store(static_cast<unsigned char>(i), std::memory_order_relaxed);
    }
    DRIVER_OK(cuStreamSynchronize(work.stream));
    unsigned wrong = 0;
    for (unsigned i = 0; i < count; i++) {
        wrong += bytes[i] != (i % 2 == 0 ? static_cast<unsigned char>(i) : 0xcc);
    }
    check(wrong == 0, "program and kernel write bytes side by side: %u wrong", wrong);
}

template <class Condition>
bool comes_true(Condition condition) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!condition()) {
        if (std::chrono::steady_clock::now() > end) {
            return false;
        }
        std::this_thread::yield();
    }
    return true;
}

// Neither side makes a driver call in between.
void polling(const Work& work) {
    const Pinned words(16);
    auto* const request = reinterpret_cast<std::atomic<unsigned>*>(&words[0]);
    auto* const reply = reinterpret_cast<std::atomic<unsigned>*>(&words[8]);
    const CUdeviceptr device = words.device();
    DRIVER_OK(launch(work.answer, 1, 1, work.stream, device, device + 32, 0u));  // loads the kernel
    DRIVER_OK(cuStreamSynchronize(work.stream));
    reply->store(0);
    DRIVER_OK(launch(work.answer, 1, 1, work.stream, device, device + 32, kSpinLimit));
    request->store(41);
    check(comes_true([&] { return reply->load() != 0; }), "the program sees a kernel's write while it waits");
    check(reply->load() == 42, "and the kernel saw the program's: %u", reply->load());
    DRIVER_OK(cuStreamSynchronize(work.stream));
}

void memory_operations(const Work& work) {
    const Pinned words(4);
    DRIVER_OK(cuStreamWaitValue32(work.stream, address_of(&words[0]), 3, CU_STREAM_WAIT_VALUE_EQ));
    DRIVER_OK(cuStreamWriteValue32(work.stream, address_of(&words[1]), 11, CU_STREAM_WRITE_VALUE_DEFAULT));
    check(cuStreamQuery(work.stream) == CUDA_ERROR_NOT_READY, "a stream waits for a word of host memory");
    reinterpret_cast<std::atomic<unsigned>*>(&words[0])->store(3);
    DRIVER_OK(cuStreamSynchronize(work.stream));
    check(words[1] == 11, "and then writes another: %u", words[1]);
}

// The same in one call, and as graph nodes, beside a memset.
void batches_of_memory_operations(const Work& work) {
    const auto batch = [](const Pinned& words) {
        std::array<CUstreamBatchMemOpParams, 2> operations{};
        operations[0].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
        operations[0].waitValue.address = address_of(&words[0]);
        operations[0].waitValue.value = 3;
        operations[0].waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
        operations[1].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
        operations[1].writeValue.address = address_of(&words[1]);
        operations[1].writeValue.value = 12;
        return operations;
    };
    const auto let_go = [&](const Pinned& words) {
        check(cuStreamQuery(work.stream) == CUDA_ERROR_NOT_READY, "a stream waits for a word of host memory");
        reinterpret_cast<std::atomic<unsigned>*>(&words[0])->store(3);
        DRIVER_OK(cuStreamSynchronize(work.stream));
        check(words[1] == 12, "and then writes another: %u", words[1]);
    };
    const Pinned words(4);
    auto operations = batch(words);
    DRIVER_OK(cuStreamBatchMemOp(work.stream, operations.size(), operations.data(), 0));
    let_go(words);

    CUgraph graph = nullptr;
    DRIVER_OK(cuGraphCreate(&graph, 0));
    CUcontext context = nullptr;
    DRIVER_OK(cuCtxGetCurrent(&context));
    const Pinned of_graph(4);
    const Pinned filled(64);
    operations = batch(of_graph);
    CUDA_BATCH_MEM_OP_NODE_PARAMS node{context, static_cast<unsigned>(operations.size()), operations.data(), 0};
    CUgraphNode first = nullptr, second = nullptr;
    DRIVER_OK(cuGraphAddBatchMemOpNode(&first, graph, nullptr, 0, &node));
    CUDA_MEMSET_NODE_PARAMS memset{};
    memset.dst = address_of(&filled[0]);
    memset.value = 0x01020304;
    memset.elementSize = sizeof(unsigned);
    memset.width = 64;
    memset.height = 1;
    DRIVER_OK(cuGraphAddMemsetNode(&second, graph, &first, 1, &memset, context));
    CUgraphExec executable = nullptr;
    DRIVER_OK(cuGraphInstantiate(&executable, graph, 0));
    DRIVER_OK(cuGraphLaunch(executable, work.stream));
    let_go(of_graph);
    check(filled[0] == 0x01020304 && filled[63] == 0x01020304, "a graph fills host memory: %#x", filled[63]);
    DRIVER_OK(cuGraphExecDestroy(executable));
    DRIVER_OK(cuGraphDestroy(graph));
}

struct Seen {
    const unsigned* word;
    unsigned before = 0;
    unsigned* next;
};

void host_functions(const Work& work) {
    const Pinned memory(work.words);
    Seen seen{&memory[3], 0, &memory[4]};
    DRIVER_OK(work.add_to(memory.device(), 5));
    DRIVER_OK(cuLaunchHostFunc(
        work.stream,
        [](void* data) {
            auto* const given = static_cast<Seen*>(data);
            given->before = *given->word;
            *given->next = 100;
        },
        &seen));
    DRIVER_OK(work.add_to(memory.device(), 1));
    DRIVER_OK(cuStreamSynchronize(work.stream));
    check(seen.before == 5, "a host function sees the earlier kernel's value: %u", seen.before);
    check(memory[4] == 101 && memory[5] == 6, "and the kernel behind it sees the function's value: %u", memory[4]);
}

void events(const Work& work) {
    const Pinned memory(work.words);
    CUevent event = nullptr;
    DRIVER_OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    DRIVER_OK(work.add_to(memory.device(), 4));
    DRIVER_OK(cuEventRecord(event, work.stream));
    DRIVER_OK(cuEventSynchronize(event));
    check(memory.differ(4) == 0, "after an event: %zu wrong", memory.differ(4));
    DRIVER_OK(work.add_to(memory.device(), 4));
    DRIVER_OK(cuEventRecord(event, work.stream));
    CUresult result = CUDA_ERROR_NOT_READY;
    comes_true([&] { return (result = cuEventQuery(event)) != CUDA_ERROR_NOT_READY; });
    check(result == CUDA_SUCCESS && memory.differ(8) == 0, "after a query of it: %zu wrong", memory.differ(8));
    DRIVER_OK(cuEventDestroy(event));
}

void graphs(const Work& work) {
    const Pinned memory(work.words);
    CUgraph graph = nullptr;
    DRIVER_OK(cuStreamBeginCapture(work.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    DRIVER_OK(work.add_to(memory.device(), 2));
    DRIVER_OK(cuStreamEndCapture(work.stream, &graph));
    CUgraphExec executable = nullptr;
    DRIVER_OK(cuGraphInstantiate(&executable, graph, 0));
    for (unsigned round = 0; round < 3; round++) {
        memory[0] = 10 * round;
        DRIVER_OK(cuGraphLaunch(executable, work.stream));
        DRIVER_OK(cuStreamSynchronize(work.stream));
    }
    check(memory[0] == 22 && memory[1] == 6, "a graph's kernel, three times: %u, %u", memory[0], memory[1]);
    DRIVER_OK(cuGraphExecDestroy(executable));
    DRIVER_OK(cuGraphDestroy(graph));
}

void many_blocks(const Work& work) {
    int wrong = 0;
    for (unsigned round = 0; round < 50; round++) {
        const Pinned memory(work.words);
        memory[round] = round;
        DRIVER_OK(work.add_to(memory.device(), 1));
        DRIVER_OK(cuStreamSynchronize(work.stream));
        wrong += memory[round] != round + 1;
    }
    check(wrong == 0, "50 blocks, one after the other: %d wrong", wrong);
}

}  // namespace

int main(int argc, char** argv) {
    Program program("mapped_memory", argc, argv);
    const Device device;
    const Module module(kernels_ptx().data);
    Work work{module.function("add_value"),
              module.function("copy_words"),
              module.function("answer_word"),
              module.function("write_odd_bytes"),
              nullptr,
              static_cast<unsigned>(program.number("words", 3000))};
    DRIVER_OK(cuStreamCreate(&work.stream, CU_STREAM_NON_BLOCKING));
    program.section("device_pointer", [&] { device_pointer(work); });
    program.section("plain_address", [&] { plain_address(work); });
    program.section("registered", [&] { registered(work); });
    program.section("unmapped", [&] { unmapped(work); });
    program.section("memsets_and_copies", [&] { memsets_and_copies(work); });
    program.section("neighbours", [&] { neighbours(work); });
    program.section("polling", [&] { polling(work); });
    program.section("memory_operations", [&] { memory_operations(work); });
    program.section("batches_of_memory_operations", [&] { batches_of_memory_operations(work); });
    program.section("host_functions", [&] { host_functions(work); });
    program.section("events", [&] { events(work); });
    program.section("graphs", [&] { graphs(work); });
    program.section("many_blocks", [&] { many_blocks(work); });
    DRIVER_OK(cuStreamDestroy(work.stream));
    return program.finish();
}
