// The time to encode and decode a call, without anything around it.
#include <benchmark/benchmark.h>

#include <array>
#include <vector>

#include "protocol/codec/reply.h"

namespace gpupool::benchmarks {
namespace {

constexpr auto kStream = codec::make_handle(codec::HandleKind::stream, 3);

// The arguments of a launch with `argument_bytes` of kernel arguments, as the client encodes them.
struct Launch {
    using Call = calls::gpLaunch;
    LaunchShape shape{codec::from_wire<CUfunction>(codec::make_handle(codec::HandleKind::function, 7)),
                      1024,
                      1,
                      1,
                      256,
                      1,
                      1,
                      0,
                      0,
                      0};
    std::vector<unsigned char> bytes;
    const LaunchShape* launch = &shape;
    const CUlaunchAttribute* attributes = nullptr;
    unsigned attribute_count = 0;
    const unsigned char* arguments;
    std::size_t argument_bytes;
    CUstream stream = codec::from_wire<CUstream>(kStream);
    const void* addresses[7] = {&launch, &attributes, &attribute_count, &arguments, &argument_bytes, &stream, nullptr};

    explicit Launch(std::size_t count) : bytes(count, 1), arguments(bytes.data()), argument_bytes(count) {}
};

// A copy of 1 MiB to the device; the command carries only its announcement.
struct Copy {
    using Call = calls::gpCopyToDevice;
    CUdeviceptr destination = 0x600000000000;
    std::size_t bytes = 1u << 20;
    std::uint64_t transfer = 9, ahead_bytes = 0;
    const unsigned char* data = nullptr;
    std::size_t data_bytes = 0;
    CUstream stream = codec::from_wire<CUstream>(kStream);
    const void* addresses[8] = {&destination, &bytes, &transfer, &ahead_bytes, &data, &data_bytes, &stream, nullptr};

    explicit Copy(std::size_t) {}
};

template <class Given>
void encode(benchmark::State& state) {
    using Call = typename Given::Call;
    const Given given(static_cast<std::size_t>(state.range(0)));
    std::array<std::byte, 8192> place;
    for (auto _ : state) {
        benchmark::DoNotOptimize(codec::command_bytes<Call>(given.addresses));
        codec::Writer out(place.data());
        codec::write_command<Call>(out, given.addresses);
        benchmark::ClobberMemory();
    }
    state.SetItemsProcessed(state.iterations());
}

template <class Given>
void decode(benchmark::State& state) {
    using Call = typename Given::Call;
    const Given given(static_cast<std::size_t>(state.range(0)));
    std::vector<std::byte> body(codec::command_bytes<Call>(given.addresses));
    codec::Writer out(body.data());
    codec::write_command<Call>(out, given.addresses);
    for (auto _ : state) {
        codec::Slots<Call> slots;
        bool read = slots.read(body);
        benchmark::DoNotOptimize(read);
        benchmark::DoNotOptimize(slots.addresses);
    }
    state.SetItemsProcessed(state.iterations());
}

BENCHMARK(encode<Launch>)->Arg(0)->Arg(64)->Arg(1024);
BENCHMARK(decode<Launch>)->Arg(0)->Arg(64)->Arg(1024);
BENCHMARK(encode<Copy>)->Arg(0);
BENCHMARK(decode<Copy>)->Arg(0);

}  // namespace
}  // namespace gpupool::benchmarks
