// Events that a launch records by its attributes: when all blocks have begun, or when all have triggered the event;
// without an explicit trigger that is when they have ended. They are recorded as by cuEventRecord in the launch's
// stream: later queries, waits and captures refer to that record. Whether a waiter continues before the kernel has
// ended is printed and not judged.
#include <array>

#include "tests/gpu/driver.h"
#include "tests/gpu/images.h"

using namespace gpupool::programs;

namespace {

enum class When { begun, triggered };

CUlaunchAttribute attribute_of(When when, CUevent event, bool at_start = false) {
    CUlaunchAttribute attribute{};
    if (when == When::begun) {
        attribute.id = CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT;
        attribute.value.launchCompletionEvent.event = event;
    } else {
        attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT;
        attribute.value.programmaticEvent.event = event;
        attribute.value.programmaticEvent.triggerAtBlockStart = at_start ? 1 : 0;
    }
    return attribute;
}

template <class... Parameters>
CUresult launch_with(CUlaunchAttribute attribute, CUfunction function, CUstream stream, Parameters... parameters) {
    void* addresses[] = {static_cast<void*>(&parameters)..., nullptr};
    CUlaunchConfig config{};
    config.gridDimX = config.gridDimY = config.gridDimZ = 1;
    config.blockDimX = config.blockDimY = config.blockDimZ = 1;
    config.hStream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return cuLaunchKernelEx(&config, function, addresses, nullptr);
}

// A kernel in the first stream spins until the flag is set; kernels behind it append tickets.
class Scene {
  public:
    Scene() {
        for (CUstream* stream : {&first, &second, &releasing}) {
            DRIVER_OK(cuStreamCreate(stream, CU_STREAM_NON_BLOCKING));
        }
        DRIVER_OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
        DRIVER_OK(cuMemAlloc(&words_, 256));
        // Loads every kernel now: a first launch may wait for the device.
        DRIVER_OK(cuMemsetD32(words_, 1, 64));
        DRIVER_OK(spin());
        DRIVER_OK(ticket(first, 0));
        DRIVER_OK(release());
        DRIVER_OK(cuCtxSynchronize());
        clear();
    }
    ~Scene() {
        cuEventDestroy(event);
        cuMemFree(words_);
        for (CUstream stream : {first, second, releasing}) {
            cuStreamDestroy(stream);
        }
    }
    Scene(const Scene&) = delete;
    Scene& operator=(const Scene&) = delete;

    void clear() const {
        DRIVER_OK(cuMemsetD8(words_, 0, 256));
        DRIVER_OK(cuCtxSynchronize());
    }
    CUresult spin() const { return launch(spin_, 1, 1, first, words_, words_ + 4, kSpinLimit); }
    CUresult spin_with(CUlaunchAttribute attribute) const {
        return launch_with(attribute, spin_, first, words_, words_ + 4, kSpinLimit);
    }
    CUresult ticket(CUstream stream, unsigned number) const {
        return launch(append_, 1, 1, stream, log(), 16u, words_ + 8, number);
    }
    CUresult ticket_with(CUlaunchAttribute attribute, CUstream stream, unsigned number) const {
        return launch_with(attribute, append_, stream, log(), 16u, words_ + 8, number);
    }
    CUresult release() const { return launch(store_, 1, 1, releasing, words_, 1u); }
    std::array<unsigned, 4> tickets() const {
        std::array<unsigned, 4> values{};
        DRIVER_OK(cuMemcpyDtoH(values.data(), log(), sizeof values));
        return values;
    }

    CUstream first = nullptr, second = nullptr, releasing = nullptr;
    CUevent event = nullptr;

  private:
    CUdeviceptr log() const { return words_ + 64; }

    Module module_{kernels_ptx().data};
    CUfunction spin_ = module_.function("spin");
    CUfunction append_ = module_.function("append_ticket");
    CUfunction store_ = module_.function("store_word");
    CUdeviceptr words_ = 0;
};

// Behind a waiting kernel the event is not complete, and another stream waits for it.
void record(When when) {
    constexpr unsigned kRounds = 50;
    const Scene scene;
    check_result(cuEventQuery(scene.event), CUDA_SUCCESS, "an event that was never recorded");
    unsigned early = 0, wrong = 0, late = 0;
    for (unsigned round = 0; round < kRounds; round++) {
        DRIVER_OK(scene.spin());
        DRIVER_OK(scene.ticket_with(attribute_of(when, scene.event), scene.first, 1));
        DRIVER_OK(scene.ticket(scene.first, 2));
        early += cuEventQuery(scene.event) == CUDA_ERROR_NOT_READY ? 0 : 1;
        DRIVER_OK(cuStreamWaitEvent(scene.second, scene.event, 0));
        DRIVER_OK(cuEventRecord(scene.event, scene.second));
        early += cuEventQuery(scene.event) == CUDA_ERROR_NOT_READY ? 0 : 1;
        DRIVER_OK(scene.release());
        DRIVER_OK(cuEventSynchronize(scene.event));
        late += cuEventQuery(scene.event) == CUDA_SUCCESS ? 0 : 1;
        DRIVER_OK(cuStreamSynchronize(scene.first));
        const auto tickets = scene.tickets();
        wrong += tickets[0] == 1 && tickets[1] == 2 ? 0 : 1;
        scene.clear();
    }
    check(early == 0, "%u of %u times an event was complete before its kernel could begin", early, 2 * kRounds);
    check(wrong == 0, "%u of %u times the kernels ran in another order", wrong, kRounds);
    check(late == 0, "%u of %u times an event was not complete after the wait for it", late, kRounds);
}

// A waiter sees the kernel's own writes, if the kernel triggers the event only by its end.
void order(When when) {
    const Scene scene;
    DRIVER_OK(scene.spin());
    DRIVER_OK(scene.ticket_with(attribute_of(when, scene.event), scene.first, 1));
    DRIVER_OK(cuStreamWaitEvent(scene.second, scene.event, 0));
    DRIVER_OK(cuEventRecord(scene.event, scene.first));  // does not affect the existing wait
    DRIVER_OK(cuStreamWaitEvent(scene.second, scene.event, 0));
    DRIVER_OK(scene.ticket(scene.second, 2));
    check_result(cuStreamQuery(scene.second), CUDA_ERROR_NOT_READY, "a stream that waits for the event");
    DRIVER_OK(scene.release());
    DRIVER_OK(cuStreamSynchronize(scene.second));
    const auto tickets = scene.tickets();
    check(tickets[0] == 1 && tickets[1] == 2, "the order across streams (%u, %u)", tickets[0], tickets[1]);
}

// Makes more launches than a stream can queue. Each records the same event, so the event stands for the last launch.
void many(When when) {
    constexpr unsigned kLaunches = 3'000;
    const Scene scene;
    for (unsigned i = 0; i < kLaunches; i++) {
        DRIVER_OK(scene.ticket_with(attribute_of(when, scene.event), scene.first, i));
    }
    DRIVER_OK(cuStreamWaitEvent(scene.second, scene.event, 0));
    DRIVER_OK(cuStreamSynchronize(scene.second));
    DRIVER_OK(cuStreamSynchronize(scene.first));
    check_result(cuEventQuery(scene.event), CUDA_SUCCESS, "after the streams' end");
    const auto tickets = scene.tickets();
    check(tickets[0] == 0 && tickets[3] == 3, "%u launches in their order", kLaunches);
}

void destroyed_while_busy(When when) {
    Scene scene;
    DRIVER_OK(scene.spin());
    DRIVER_OK(scene.ticket_with(attribute_of(when, scene.event), scene.first, 1));
    DRIVER_OK(cuStreamWaitEvent(scene.second, scene.event, 0));
    DRIVER_OK(cuEventDestroy(scene.event));
    DRIVER_OK(cuEventCreate(&scene.event, CU_EVENT_DISABLE_TIMING));
    DRIVER_OK(scene.release());
    DRIVER_OK(cuStreamSynchronize(scene.second));
    DRIVER_OK(cuStreamSynchronize(scene.first));
    const auto tickets = scene.tickets();
    check(tickets[0] == 1, "the launched work ran");
}

// The event carries the capture to the second stream, and back.
void captured(When when) {
    const Scene scene;
    CUevent back = nullptr;
    DRIVER_OK(cuEventCreate(&back, CU_EVENT_DISABLE_TIMING));
    DRIVER_OK(cuStreamBeginCapture(scene.first, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    DRIVER_OK(scene.ticket_with(attribute_of(when, scene.event), scene.first, 1));
    DRIVER_OK(cuStreamWaitEvent(scene.second, scene.event, 0));
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    DRIVER_OK(cuStreamIsCapturing(scene.second, &status));
    check(status == CU_STREAM_CAPTURE_STATUS_ACTIVE, "a stream that waits for the event captures as well");
    DRIVER_OK(scene.ticket(scene.second, 2));
    DRIVER_OK(cuEventRecord(back, scene.second));
    DRIVER_OK(cuStreamWaitEvent(scene.first, back, 0));
    CUgraph graph = nullptr;
    CUgraphExec executable = nullptr;
    DRIVER_OK(cuStreamEndCapture(scene.first, &graph));
    check_result(cuEventQuery(scene.event), CUDA_ERROR_INVALID_VALUE, "a question for an event of a capture");
    size_t nodes = 0;
    DRIVER_OK(cuGraphGetNodes(graph, nullptr, &nodes));
    check(nodes == 2, "a graph of two kernels (%zu nodes)", nodes);
    DRIVER_OK(cuGraphInstantiate(&executable, graph, 0));
    DRIVER_OK(cuGraphLaunch(executable, scene.first));
    DRIVER_OK(cuStreamSynchronize(scene.first));
    const auto tickets = scene.tickets();
    check(tickets[0] + tickets[1] != 0, "the graph ran (%u, %u)", tickets[0], tickets[1]);
    DRIVER_OK(scene.ticket_with(attribute_of(when, scene.event), scene.first, 3));
    DRIVER_OK(cuStreamSynchronize(scene.first));
    check_result(cuEventQuery(scene.event), CUDA_SUCCESS, "recorded again outside of a capture");
    DRIVER_OK(cuGraphExecDestroy(executable));
    DRIVER_OK(cuGraphDestroy(graph));
    DRIVER_OK(cuEventDestroy(back));
}

void mistakes(When when) {
    const Scene scene;
    CUevent timed = nullptr;
    DRIVER_OK(cuEventCreate(&timed, CU_EVENT_DEFAULT));
    check_result(scene.ticket_with(attribute_of(when, timed), scene.first, 1), CUDA_ERROR_NOT_SUPPORTED,
                 "a timed event");
    check_result(scene.ticket_with(attribute_of(when, nullptr), scene.first, 1), CUDA_ERROR_INVALID_HANDLE, "none");
    DRIVER_OK(cuCtxSynchronize());
    DRIVER_OK(scene.ticket_with(attribute_of(when, scene.event), scene.first, 1));
    DRIVER_OK(cuStreamSynchronize(scene.first));
    check_result(cuEventQuery(scene.event), CUDA_SUCCESS, "and a launch without a mistake");
    DRIVER_OK(cuEventDestroy(timed));
}

// Whether a waiter continues while the kernel runs; nothing requires it.
void overtaken(When when) {
    const Scene scene;
    DRIVER_OK(scene.spin_with(attribute_of(when, scene.event, true)));
    DRIVER_OK(cuStreamWaitEvent(scene.second, scene.event, 0));
    DRIVER_OK(scene.ticket(scene.second, 1));
    CUresult result = CUDA_ERROR_NOT_READY;
    for (int i = 0; i < 10'000 && result == CUDA_ERROR_NOT_READY; i++) {
        result = cuStreamQuery(scene.second);
    }
    note("while the kernel runs, another stream %s", result == CUDA_SUCCESS ? "goes on" : "waits");
    DRIVER_OK(scene.release());
    DRIVER_OK(cuStreamSynchronize(scene.second));
    DRIVER_OK(cuStreamSynchronize(scene.first));
    check(scene.tickets()[0] == 1, "both ended");
}

}  // namespace

int main(int argc, char** argv) {
    Program program("launch_events", argc, argv);
    const Device device;
    for (const When when : {When::begun, When::triggered}) {
        const std::string name = when == When::begun ? "begun_" : "triggered_";
        program.section(name + "record", [&] { record(when); });
        program.section(name + "order", [&] { order(when); });
        program.section(name + "many", [&] { many(when); });
        program.section(name + "destroyed_while_busy", [&] { destroyed_while_busy(when); });
        program.section(name + "captured", [&] { captured(when); });
        program.section(name + "mistakes", [&] { mistakes(when); });
        program.section(name + "overtaken", [&] { overtaken(when); });
    }
    return program.finish();
}
