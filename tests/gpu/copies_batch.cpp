// Batches of copies: both forms of the two calls, between all kinds of memory, in each order of access to the sources;
// what is refused, and for which copy. Copies of rows between contexts.
//
// Setting: copies, of the large batch.
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

#include "tests/gpu/busy.h"
#include "tests/gpu/driver.h"
#include "tests/gpu/latch.h"
#include "tests/gpu/pinned.h"

using namespace gpupool::programs;

namespace {

using Batch12 = CUresult (*)(CUdeviceptr*, CUdeviceptr*, size_t*, size_t, CUmemcpyAttributes*, size_t*, size_t, size_t*,
                             CUstream);
using Batch12Rows = CUresult (*)(size_t, CUDA_MEMCPY3D_BATCH_OP*, size_t*, unsigned long long, CUstream);

constexpr size_t kUnset = 12345, kNoCopy = ~size_t{0};

template <class Function>
Function form_of_12_8(const char* name) {
    void* address = nullptr;
    CUdriverProcAddressQueryResult status{};
    DRIVER_OK(cuGetProcAddress(name, &address, 12080, CU_GET_PROC_ADDRESS_DEFAULT, &status));
    return reinterpret_cast<Function>(address);
}

struct Stream {
    Stream() { DRIVER_OK(cuStreamCreate(&handle, CU_STREAM_NON_BLOCKING)); }
    ~Stream() { cuStreamDestroy(handle); }
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;
    CUstream handle = nullptr;
};

struct DeviceBlock {
    explicit DeviceBlock(size_t bytes) {
        DRIVER_OK(cuMemAlloc(&address, bytes));
        DRIVER_OK(cuMemsetD8(address, 0, bytes));
        DRIVER_OK(cuCtxSynchronize());
    }
    ~DeviceBlock() { cuMemFree(address); }
    DeviceBlock(const DeviceBlock&) = delete;
    DeviceBlock& operator=(const DeviceBlock&) = delete;
    CUdeviceptr address = 0;
};

// Host memory of one kind.
class HostBlock {
  public:
    enum class Kind { pageable, pinned, mapped, registered };
    HostBlock(Kind kind, size_t bytes) : kind_(kind), bytes_(bytes) {
        if (kind == Kind::pinned || kind == Kind::mapped) {
            void* memory = nullptr;
            DRIVER_OK(cuMemHostAlloc(&memory, bytes, kind == Kind::mapped ? CU_MEMHOSTALLOC_DEVICEMAP : 0));
            memory_ = static_cast<uint8_t*>(memory);
            return;
        }
        memory_ =
            static_cast<uint8_t*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        if (kind == Kind::registered) {
            DRIVER_OK(cuMemHostRegister(memory_, bytes, 0));
        }
    }
    ~HostBlock() {
        if (kind_ == Kind::pinned || kind_ == Kind::mapped) {
            cuMemFreeHost(memory_);
            return;
        }
        if (kind_ == Kind::registered) {
            cuMemHostUnregister(memory_);
        }
        munmap(memory_, bytes_);
    }
    HostBlock(const HostBlock&) = delete;
    HostBlock& operator=(const HostBlock&) = delete;
    uint8_t* get() const { return memory_; }

  private:
    const Kind kind_;
    const size_t bytes_;
    uint8_t* memory_ = nullptr;
};

constexpr std::array<HostBlock::Kind, 4> kKinds = {HostBlock::Kind::pageable, HostBlock::Kind::pinned,
                                                   HostBlock::Kind::mapped, HostBlock::Kind::registered};
const char* name_of(HostBlock::Kind kind) {
    constexpr std::array<const char*, 4> kNames = {"pageable", "pinned", "mapped", "registered"};
    return kNames[static_cast<size_t>(kind)];
}

constexpr std::array<CUmemcpySrcAccessOrder, 3> kOrders = {
    CU_MEMCPY_SRC_ACCESS_ORDER_STREAM, CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL, CU_MEMCPY_SRC_ACCESS_ORDER_ANY};

// A batch that is being put together.
struct Batch {
    std::vector<CUdeviceptr> to, from;
    std::vector<size_t> bytes;
    std::vector<CUmemcpyAttributes> attributes;
    std::vector<size_t> first;

    void add(CUdeviceptr destination, CUdeviceptr source, size_t size) {
        to.push_back(destination);
        from.push_back(source);
        bytes.push_back(size);
    }
    // The copies from here on have this order.
    void from_here(CUmemcpySrcAccessOrder order) {
        CUmemcpyAttributes attribute{};
        attribute.srcAccessOrder = order;
        attributes.push_back(attribute);
        first.push_back(to.size());
    }
    CUresult send(CUstream stream) {
        return cuMemcpyBatchAsync(to.data(), from.data(), bytes.data(), to.size(), attributes.data(), first.data(),
                                  attributes.size(), stream);
    }
    CUresult send(CUstream stream, size_t& failed) {
        static const auto call = form_of_12_8<Batch12>("cuMemcpyBatchAsync");
        return call(to.data(), from.data(), bytes.data(), to.size(), attributes.data(), first.data(), attributes.size(),
                    &failed, stream);
    }
};

// `count` pieces, scattered on the device, there and back: of 1 byte to 16 KiB, or of 4 KiB where there are so many
// that the driver fails with others (docs/driver-facts.md).
void scattered(size_t count) {
    constexpr size_t kSlot = 16384, kManyPieces = 500;
    const DeviceBlock device(count * kSlot);
    const HostBlock host(HostBlock::Kind::pinned, count * kSlot);
    const Stream stream;
    for (const bool form_of_12 : {false, true}) {
        const auto value = [&](size_t i) { return static_cast<uint8_t>(i * 3 + (form_of_12 ? 1 : 0)); };
        Batch in, out;
        in.from_here(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
        out.from_here(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
        for (size_t i = 0; i < count; i++) {
            const CUdeviceptr there = device.address + (i * 1237 + 11) % count * kSlot;
            const CUdeviceptr here = address_of(host.get()) + i * kSlot;
            const size_t size = count < kManyPieces ? 1 + i * 7919 % kSlot : 4096;
            std::memset(host.get() + i * kSlot, value(i), kSlot);
            in.add(there, here, size);
            out.add(here, there, size);
        }
        size_t failed = kUnset;
        const auto send = [&](Batch& batch) {
            return form_of_12 ? batch.send(stream.handle, failed) : batch.send(stream.handle);
        };
        DRIVER_OK(send(in));
        DRIVER_OK(cuStreamSynchronize(stream.handle));
        std::memset(host.get(), 0xee, count * kSlot);
        DRIVER_OK(send(out));
        DRIVER_OK(cuStreamSynchronize(stream.handle));
        size_t wrong = 0;
        for (size_t i = 0; i < count; i++) {
            const uint8_t* const piece = host.get() + i * kSlot;
            const size_t size = out.bytes[i];
            const bool right = std::all_of(piece, piece + size, [&](uint8_t byte) { return byte == value(i); }) &&
                               (size == kSlot || piece[size] == 0xee);
            wrong += right ? 0 : 1;
        }
        check(wrong == 0, "%zu pieces there and back, form of %s: %zu wrong", count, form_of_12 ? "12.8" : "13.0",
              wrong);
    }
}

// `count` pieces of 4 KiB from one place of the device to another.
void on_device(size_t count) {
    constexpr size_t kSlot = 8192, kBytes = 4096;
    const DeviceBlock from(count * kSlot), to(count * kSlot);
    const Stream stream;
    Batch batch;
    batch.from_here(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
    for (size_t i = 0; i < count; i++) {
        const CUdeviceptr source = from.address + (i * 1237 + 11) % count * kSlot;
        DRIVER_OK(cuMemsetD8Async(source, static_cast<unsigned char>(i), kBytes, stream.handle));
        batch.add(to.address + i * kSlot, source, kBytes);
    }
    DRIVER_OK(batch.send(stream.handle));
    DRIVER_OK(cuStreamSynchronize(stream.handle));
    std::vector<uint8_t> back(count * kSlot);
    DRIVER_OK(cuMemcpyDtoH(back.data(), to.address, back.size()));
    size_t wrong = 0;
    for (size_t i = 0; i < count; i++) {
        const auto piece = back.begin() + static_cast<std::ptrdiff_t>(i * kSlot);
        wrong += std::all_of(piece, piece + kBytes, [=](uint8_t byte) { return byte == static_cast<uint8_t>(i); }) &&
                         piece[kBytes] == 0
                     ? 0
                     : 1;
    }
    check(wrong == 0, "%zu pieces on the device: %zu wrong", count, wrong);
}

// Sources in host memory, in a stream that is busy. The program changes a source as soon as the order allows it.
void to_device(size_t bytes) {
    const DeviceBlock device(bytes);
    const Stream stream;
    Busy busy;
    for (const HostBlock::Kind kind : kKinds) {
        const HostBlock host(kind, bytes);
        for (const CUmemcpySrcAccessOrder order : kOrders) {
            DRIVER_OK(cuMemsetD8(device.address, 0, bytes));
            DRIVER_OK(cuCtxSynchronize());
            std::memset(host.get(), 1, bytes);
            Batch batch;
            batch.from_here(order);
            batch.add(device.address, address_of(host.get()), bytes / 2);
            batch.add(device.address + bytes / 2, address_of(host.get()) + bytes / 2, bytes - bytes / 2);
            busy.start(stream.handle);
            DRIVER_OK(batch.send(stream.handle));
            // (With pageable memory the driver itself does not always keep this promise.)
            if (order == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL && kind != HostBlock::Kind::pageable) {
                std::memset(host.get(), 2, bytes);
            }
            DRIVER_OK(cuStreamSynchronize(stream.handle));
            std::vector<uint8_t> back(bytes);
            DRIVER_OK(cuMemcpyDtoH(back.data(), device.address, bytes));
            check(std::all_of(back.begin(), back.end(), [](uint8_t byte) { return byte == 1; }),
                  "%zu bytes of %s memory to the device, order %d", bytes, name_of(kind), static_cast<int>(order));
        }
    }
}

void to_host(size_t bytes) {
    const DeviceBlock device(bytes);
    const Stream stream;
    Busy busy;
    for (const HostBlock::Kind kind : kKinds) {
        const HostBlock host(kind, bytes);
        for (const CUmemcpySrcAccessOrder order : kOrders) {
            std::memset(host.get(), 0, bytes);
            busy.start(stream.handle);
            DRIVER_OK(cuMemsetD8Async(device.address, 7, bytes, stream.handle));
            Batch batch;
            batch.from_here(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
            batch.add(address_of(host.get()), device.address, 1);
            if (order != CU_MEMCPY_SRC_ACCESS_ORDER_STREAM) {
                DRIVER_OK(cuStreamSynchronize(stream.handle));  // then no earlier work writes the source
                batch.from_here(order);
            }
            batch.add(address_of(host.get()) + 1, device.address + 1, bytes - 1);
            DRIVER_OK(batch.send(stream.handle));
            DRIVER_OK(cuStreamSynchronize(stream.handle));
            check(std::all_of(host.get(), host.get() + bytes, [](uint8_t byte) { return byte == 7; }),
                  "%zu bytes of the device to %s memory, order %d", bytes, name_of(kind), static_cast<int>(order));
        }
    }
}

// Copies from host to host memory are work of the stream: the call does not wait for it, unless a source has to be read
// during the call.
void on_host() {
    constexpr size_t kBytes = 5000;
    const Stream stream;
    for (const HostBlock::Kind to : kKinds) {
        for (const HostBlock::Kind from : kKinds) {
            const HostBlock source(from, kBytes), destination(to, kBytes);
            std::memset(source.get(), 5, kBytes);
            std::memset(destination.get(), 0, kBytes);
            const auto arrived = [&](uint8_t value) {
                return std::all_of(destination.get(), destination.get() + kBytes,
                                   [=](uint8_t byte) { return byte == value; });
            };
            Batch batch;
            batch.from_here(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
            batch.add(address_of(destination.get()), address_of(source.get()), kBytes);
            Latch latch;
            DRIVER_OK(cuLaunchHostFunc(stream.handle, Latch::wait, &latch));
            DRIVER_OK(batch.send(stream.handle));
            const bool waited = latch.over(), early = !arrived(0);
            latch.open();
            DRIVER_OK(cuStreamSynchronize(stream.handle));
            check(!waited && !early && arrived(5), "%s to %s memory, in stream order", name_of(from), name_of(to));
            std::memset(source.get(), 6, kBytes);
            batch.attributes[0].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
            DRIVER_OK(batch.send(stream.handle));
            std::memset(source.get(), 7, kBytes);
            DRIVER_OK(cuStreamSynchronize(stream.handle));
            check(arrived(6), "%s to %s memory, during the call", name_of(from), name_of(to));
        }
    }
}

// Which copies wait for earlier work of the stream, and which return at once.
void waits() {
    constexpr size_t kBytes = 3000;
    const DeviceBlock device(2 * kBytes);
    const Stream stream;
    const auto waits = [&](CUdeviceptr to, CUdeviceptr from, CUmemcpySrcAccessOrder order) {
        Batch batch;
        batch.from_here(order);
        batch.add(to, from, kBytes);
        Busy busy;
        busy.start(stream.handle);
        DRIVER_OK(batch.send(stream.handle));
        const bool over = busy.over;
        DRIVER_OK(cuStreamSynchronize(stream.handle));
        return over;
    };
    for (const HostBlock::Kind kind : kKinds) {
        const HostBlock host(kind, kBytes);
        const CUdeviceptr address = address_of(host.get());
        for (const CUmemcpySrcAccessOrder order : {CU_MEMCPY_SRC_ACCESS_ORDER_STREAM, CU_MEMCPY_SRC_ACCESS_ORDER_ANY}) {
            check(!waits(address, device.address, order), "to %s memory, order %d: returns at once", name_of(kind),
                  static_cast<int>(order));
        }
        check(waits(address, device.address, CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL),
              "to %s memory, during the call: waits", name_of(kind));
        check(!waits(device.address, address, CU_MEMCPY_SRC_ACCESS_ORDER_ANY),
              "from %s memory, any order: returns at once", name_of(kind));
    }
    check(!waits(device.address + kBytes, device.address, CU_MEMCPY_SRC_ACCESS_ORDER_STREAM),
          "on the device, in stream order: returns at once");
    check(waits(device.address + kBytes, device.address, CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL),
          "on the device, during the call: waits");
}

// A source that earlier work of the stream writes.
void written_before() {
    constexpr size_t kBytes = 100000;
    const DeviceBlock first(kBytes), second(kBytes);
    const HostBlock host(HostBlock::Kind::mapped, kBytes);
    const Stream stream;
    DRIVER_OK(cuMemsetD8Async(first.address, 9, kBytes, stream.handle));
    Batch out, in;
    out.from_here(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
    in.from_here(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
    for (size_t at = 0; at < kBytes; at += 1000) {
        out.add(address_of(host.get()) + at, first.address + at, 1000);
        in.add(second.address + at, address_of(host.get()) + at, 1000);
    }
    DRIVER_OK(out.send(stream.handle));
    DRIVER_OK(in.send(stream.handle));
    std::vector<uint8_t> back(kBytes);
    DRIVER_OK(cuMemcpyDtoHAsync(back.data(), second.address, kBytes, stream.handle));
    DRIVER_OK(cuStreamSynchronize(stream.handle));
    check(std::all_of(back.begin(), back.end(), [](uint8_t byte) { return byte == 9; }),
          "a batch to the host, and one from there");
}

void refused() {
    const DeviceBlock device(1 << 16);
    const Stream stream;
    Batch good;
    for (size_t i = 0; i < 8; i++) {
        if (i == 0 || i == 5) {
            good.from_here(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
        }
        good.add(device.address + i * 1024, device.address + 32768 + i * 1024, 1024);
    }
    const auto expect = [&](const char* what, size_t want, auto change) {
        Batch batch = good;
        change(batch);
        size_t failed = kUnset;
        check_result(batch.send(stream.handle, failed), CUDA_ERROR_INVALID_VALUE, what);
        check(failed == want, "%s: the copy that fails is %zd", what, static_cast<ssize_t>(failed));
        check_result(batch.send(stream.handle), CUDA_ERROR_INVALID_VALUE, what);
    };
    size_t failed = kUnset;
    check_result(good.send(stream.handle, failed), CUDA_SUCCESS, "a batch that is right");
    check(failed == kNoCopy, "no copy of it fails");
    expect("no copies", kNoCopy, [](Batch& batch) { batch.to.clear(); });
    expect("no attributes", kNoCopy, [](Batch& batch) { batch.attributes.clear(); });
    expect("more attributes than copies", kNoCopy, [](Batch& batch) { batch.to.resize(1); });
    expect("a first index of 1", kNoCopy, [](Batch& batch) { batch.first[0] = 1; });
    expect("two equal indexes", kNoCopy, [](Batch& batch) { batch.first[1] = 0; });
    expect("an index that no copy has", kNoCopy, [](Batch& batch) { batch.first[1] = 8; });
    expect("no order", kNoCopy, [](Batch& batch) { batch.attributes[1].srcAccessOrder = {}; });
    expect("unknown flags", kNoCopy, [](Batch& batch) { batch.attributes[0].flags = 2; });
    expect("a hint at no device", kNoCopy, [](Batch& batch) {
        batch.attributes[0].srcLocHint.type = CU_MEM_LOCATION_TYPE_DEVICE;
        batch.attributes[0].srcLocHint.id = 99;
    });
    expect("a size of 0", 2, [](Batch& batch) { batch.bytes[2] = 0; });
    expect("a source of 0", 5, [](Batch& batch) { batch.from[5] = 0; });
    expect("a destination of 0", 3, [](Batch& batch) { batch.to[3] = batch.from[6] = 0; });
    expect("more than the allocation has", 6, [](Batch& batch) { batch.bytes[6] = 1 << 20; });

    DRIVER_OK(cuStreamSynchronize(stream.handle));  // the memsets are not ordered behind it
    DRIVER_OK(cuMemsetD8(device.address + 32768, 7, 8192));
    DRIVER_OK(cuMemsetD8(device.address, 0, 8192));
    DRIVER_OK(cuCtxSynchronize());
    expect("the fourth of eight", 3, [](Batch& batch) { batch.to[3] = 0; });
    DRIVER_OK(cuStreamSynchronize(stream.handle));
    std::vector<uint8_t> back(8192);
    DRIVER_OK(cuMemcpyDtoH(back.data(), device.address, back.size()));
    check(back[0] == 7 && back[2048] == 7 && back[4096] == 0, "the copies before the one that fails are made: %d %d %d",
          back[0], back[2048], back[4096]);
}

void streams() {
    const DeviceBlock device(4096);
    const Stream stream;
    Batch batch;
    batch.from_here(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
    batch.add(device.address, device.address + 2048, 1024);
    const auto send = [&](auto call, CUstream to) {
        return call(batch.to.data(), batch.from.data(), batch.bytes.data(), 1, batch.attributes.data(),
                    batch.first.data(), 1, to);
    };
    check_result(batch.send(CU_STREAM_LEGACY), CUDA_ERROR_INVALID_VALUE, "the legacy stream");
    check_result(batch.send(nullptr), CUDA_ERROR_INVALID_VALUE, "the stream 0");
    check_result(batch.send(CU_STREAM_PER_THREAD), CUDA_SUCCESS, "the per-thread stream");
    const auto per_thread = per_thread_form<decltype(&cuMemcpyBatchAsync)>("cuMemcpyBatchAsync");
    check_result(send(per_thread, nullptr), CUDA_ERROR_INVALID_VALUE, "the stream 0 of the per-thread form");
    check_result(send(per_thread, CU_STREAM_PER_THREAD), CUDA_SUCCESS, "the per-thread stream of that form");

    DRIVER_OK(cuStreamBeginCapture(stream.handle, CU_STREAM_CAPTURE_MODE_GLOBAL));
    size_t failed = kUnset;
    check_result(batch.send(stream.handle, failed), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "a stream that captures");
    check(failed == kNoCopy, "which no single copy is the reason of");
    CUDA_MEMCPY3D_BATCH_OP rows{};
    rows.src.type = rows.dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
    rows.dst.op.ptr.ptr = device.address;
    rows.src.op.ptr.ptr = device.address + 2048;
    rows.extent = {16, 2, 2};
    rows.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    check_result(cuMemcpy3DBatchAsync(1, &rows, 0, stream.handle), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                 "rows, in a stream that captures");
    CUgraph graph = nullptr;
    check_result(cuStreamEndCapture(stream.handle, &graph), CUDA_SUCCESS, "the capture stays valid");
    DRIVER_OK(cuGraphDestroy(graph));
    DRIVER_OK(cuCtxSynchronize());
}

CUmemcpy3DOperand pointer(CUdeviceptr address, size_t row_length = 0, size_t layer_height = 0) {
    CUmemcpy3DOperand operand{};
    operand.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
    operand.op.ptr.ptr = address;
    operand.op.ptr.rowLength = row_length;
    operand.op.ptr.layerHeight = layer_height;
    return operand;
}

CUmemcpy3DOperand in_array(CUarray array, CUoffset3D offset) {
    CUmemcpy3DOperand operand{};
    operand.type = CU_MEMCPY_OPERAND_TYPE_ARRAY;
    operand.op.array.array = array;
    operand.op.array.offset = offset;
    return operand;
}

CUDA_MEMCPY3D_BATCH_OP copy_of(const CUmemcpy3DOperand& to, const CUmemcpy3DOperand& from, CUextent3D extent) {
    CUDA_MEMCPY3D_BATCH_OP op{};
    op.dst = to;
    op.src = from;
    op.extent = extent;
    op.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    return op;
}

// Boxes of 6 by 5 by 4 elements: host to device, to an array, to another array, to the host.
void boxes() {
    constexpr size_t kBytes = 1 << 14;
    const DeviceBlock device(kBytes);
    const Stream stream;
    const CUextent3D box = {6, 5, 4};
    CUDA_ARRAY3D_DESCRIPTOR about = {16, 8, 6, CU_AD_FORMAT_UNSIGNED_INT16, 2, 0};  // elements of 4 bytes
    CUarray first = nullptr, second = nullptr;
    DRIVER_OK(cuArray3DCreate(&first, &about));
    DRIVER_OK(cuArray3DCreate(&second, &about));
    for (const HostBlock::Kind kind : kKinds) {
        const HostBlock in(kind, kBytes), out(kind, kBytes);
        for (size_t i = 0; i < kBytes; i++) {
            in.get()[i] = static_cast<uint8_t>(i * 7 + (i >> 8));
        }
        std::memset(out.get(), 0, kBytes);
        // On the device, rows of 40 bytes and layers of 7 rows; a row of the box has 24 bytes.
        CUDA_MEMCPY3D_BATCH_OP there[] = {
            copy_of(pointer(device.address, 40, 7), pointer(address_of(in.get()), 32, 6), {24, 5, 4}),
            copy_of(pointer(device.address + 8192), pointer(address_of(in.get()) + 8192), {1000, 1, 1})};
        CUDA_MEMCPY3D_BATCH_OP to_array = copy_of(in_array(first, {2, 1, 1}), pointer(device.address, 10, 7), box);
        CUDA_MEMCPY3D_BATCH_OP across = copy_of(in_array(second, {10, 3, 2}), in_array(first, {2, 1, 1}), box);
        CUDA_MEMCPY3D_BATCH_OP back[] = {
            copy_of(pointer(address_of(out.get()), 8, 6), in_array(second, {10, 3, 2}), box),
            copy_of(pointer(address_of(out.get()) + 8192), pointer(device.address + 8192), {1000, 1, 1})};
        static const auto call_12 = form_of_12_8<Batch12Rows>("cuMemcpy3DBatchAsync");
        size_t failed = kUnset;
        DRIVER_OK(cuMemcpy3DBatchAsync(2, there, 0, stream.handle));
        DRIVER_OK(cuMemcpy3DBatchAsync(1, &to_array, 0, stream.handle));
        DRIVER_OK(call_12(1, &across, &failed, 0, stream.handle));
        DRIVER_OK(cuMemcpy3DBatchAsync(2, back, 0, stream.handle));
        DRIVER_OK(cuStreamSynchronize(stream.handle));
        bool right = std::equal(in.get() + 8192, in.get() + 9192, out.get() + 8192) && out.get()[9192] == 0;
        for (size_t z = 0; z < 4; z++) {
            for (size_t y = 0; y < 5; y++) {
                const size_t at = (z * 6 + y) * 32;
                right =
                    right && std::equal(in.get() + at, in.get() + at + 24, out.get() + at) && out.get()[at + 24] == 0;
            }
        }
        check(right, "boxes of %s memory through the device and two arrays", name_of(kind));
    }
    DRIVER_OK(cuArrayDestroy(first));
    DRIVER_OK(cuArrayDestroy(second));
}

void refused_boxes() {
    const DeviceBlock device(1 << 16);
    const Stream stream;
    CUDA_ARRAY3D_DESCRIPTOR about = {16, 8, 6, CU_AD_FORMAT_UNSIGNED_INT16, 2, 0};
    CUarray array = nullptr;
    DRIVER_OK(cuArray3DCreate(&array, &about));
    static const auto call_12 = form_of_12_8<Batch12Rows>("cuMemcpy3DBatchAsync");
    const CUDA_MEMCPY3D_BATCH_OP good =
        copy_of(pointer(device.address + 32768), pointer(device.address, 32, 8), {16, 4, 2});
    const auto expect = [&](const char* what, size_t want, auto change) {
        std::array<CUDA_MEMCPY3D_BATCH_OP, 3> ops = {good, good, good};
        change(ops[1]);
        size_t failed = kUnset;
        check_result(call_12(3, ops.data(), &failed, 0, stream.handle), CUDA_ERROR_INVALID_VALUE, what);
        check(failed == want, "%s: the copy that fails is %zd", what, static_cast<ssize_t>(failed));
        check_result(cuMemcpy3DBatchAsync(3, ops.data(), 0, stream.handle), CUDA_ERROR_INVALID_VALUE, what);
    };
    expect("a width of 0", 1, [](auto& op) { op.extent.width = 0; });
    expect("a height of 0", 1, [](auto& op) { op.extent.height = 0; });
    expect("a depth of 0", 1, [](auto& op) { op.extent.depth = 0; });
    expect("rows shorter than the width", 1, [](auto& op) { op.src.op.ptr.rowLength = 8; });
    expect("layers lower than the height", 1, [](auto& op) { op.src.op.ptr.layerHeight = 2; });
    expect("no order of access", 1, [](auto& op) { op.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_INVALID; });
    expect("unknown flags", 1, [](auto& op) { op.flags = 2; });
    expect("an operand of no type", 1, [](auto& op) { op.dst.type = {}; });
    expect("a source of 0", kNoCopy, [](auto& op) { op.src.op.ptr.ptr = 0; });
    expect("more than the allocation has", kNoCopy, [](auto& op) { op.dst.op.ptr.rowLength = 1 << 20; });
    expect("more than the array has", kNoCopy, [&](auto& op) { op.dst = in_array(array, {1, 0, 0}); });
    // The copies before the one that fails are made, unless one is malformed.
    const auto are_made = [&](const char* what, bool want, auto change) {
        std::array<CUDA_MEMCPY3D_BATCH_OP, 3> ops = {good, good, good};
        change(ops[1]);
        uint8_t first = 0;
        DRIVER_OK(cuMemsetD8(device.address, 7, 1));
        DRIVER_OK(cuMemsetD8(device.address + 32768, 0, 1));
        DRIVER_OK(cuCtxSynchronize());
        check_result(cuMemcpy3DBatchAsync(3, ops.data(), 0, stream.handle), CUDA_ERROR_INVALID_VALUE, what);
        DRIVER_OK(cuStreamSynchronize(stream.handle));
        DRIVER_OK(cuMemcpyDtoH(&first, device.address + 32768, 1));
        check(first == (want ? 7 : 0), "%s: the copies before it are%s made", what, want ? "" : " not");
    };
    are_made("a source of 0", true, [](auto& op) { op.src.op.ptr.ptr = 0; });
    are_made("more than the allocation has", true, [](auto& op) { op.dst.op.ptr.rowLength = 1 << 20; });
    are_made("no order of access", false, [](auto& op) { op.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_INVALID; });
    CUDA_MEMCPY3D_BATCH_OP op = good;
    check_result(cuMemcpy3DBatchAsync(1, &op, 1, stream.handle), CUDA_ERROR_INVALID_VALUE, "flags");
    check_result(cuMemcpy3DBatchAsync(0, &op, 0, stream.handle), CUDA_ERROR_INVALID_VALUE, "no copies of rows");
    check_result(cuMemcpy3DBatchAsync(1, &op, 0, nullptr), CUDA_ERROR_INVALID_VALUE, "rows on the legacy stream");
    DRIVER_OK(cuArrayDestroy(array));
}

void between_contexts(const Device& device) {
    CUcontext other = nullptr;
    DRIVER_OK(cuCtxCreate(&other, nullptr, 0, device.device()));
    CUdeviceptr there = 0;
    DRIVER_OK(cuMemAlloc(&there, 4096));
    DRIVER_OK(cuMemsetD8(there, 0, 4096));
    DRIVER_OK(cuCtxSynchronize());
    device.use();
    const DeviceBlock here(4096);
    const Stream stream;
    DRIVER_OK(cuMemsetD8(here.address, 3, 4096));
    DRIVER_OK(cuCtxSynchronize());
    CUDA_MEMCPY3D_PEER peer{};
    peer.srcMemoryType = peer.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    peer.srcContext = device.context();
    peer.dstContext = other;
    peer.srcDevice = here.address;
    peer.dstDevice = there;
    peer.srcPitch = 200;
    peer.dstPitch = 128;
    peer.srcHeight = peer.dstHeight = 4;
    peer.WidthInBytes = 100;
    peer.Height = 4;
    peer.Depth = 2;
    const auto arrived = [&](uint8_t value) {
        std::array<uint8_t, 1024> back{};
        DRIVER_OK(cuMemcpyDtoH(back.data(), there, back.size()));
        return back[0] == value && back[7 * 128 + 99] == value && back[100] == 0;
    };
    DRIVER_OK(cuMemcpy3DPeer(&peer));
    DRIVER_OK(cuCtxSynchronize());
    check(arrived(3), "rows to another context");
    DRIVER_OK(cuMemsetD8Async(here.address, 4, 4096, stream.handle));
    DRIVER_OK(cuMemcpy3DPeerAsync(&peer, stream.handle));
    DRIVER_OK(cuStreamSynchronize(stream.handle));
    check(arrived(4), "rows to another context, in a stream");
    std::vector<uint8_t> host(4096, 5);
    peer.srcMemoryType = CU_MEMORYTYPE_HOST;
    peer.srcHost = host.data();
    DRIVER_OK(cuMemcpy3DPeer(&peer));
    check(arrived(5), "rows of the host to another context");
    peer.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    peer.srcContext = peer.dstContext = nullptr;
    check_result(cuMemcpy3DPeerAsync(&peer, stream.handle), CUDA_SUCCESS, "rows without contexts");
    DRIVER_OK(cuStreamSynchronize(stream.handle));
    check(arrived(4), "which means the current one");
    peer.srcPitch = 50;
    check_result(cuMemcpy3DPeer(&peer), CUDA_ERROR_INVALID_VALUE, "rows that overlap");
    peer.srcPitch = 200;
    DRIVER_OK(cuStreamBeginCapture(stream.handle, CU_STREAM_CAPTURE_MODE_RELAXED));
    check_result(cuMemcpy3DPeerAsync(&peer, stream.handle), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "in a capture");
    CUgraph graph = nullptr;
    check_result(cuStreamEndCapture(stream.handle, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "the end of it");
    DRIVER_OK(cuCtxSetCurrent(other));
    DRIVER_OK(cuMemFree(there));
    DRIVER_OK(cuCtxDestroy(other));
    device.use();
}

}  // namespace

int main(int argc, char** argv) {
    Program program("copies_batch", argc, argv);
    const Device device;
    program.section("scattered", [&] {
        scattered(300);
        scattered(static_cast<size_t>(program.number("copies", 2000)));
    });
    program.section("to_device", [] {
        to_device(3000);
        to_device(300000);
    });
    program.section("to_host", [] {
        to_host(3000);
        to_host(300000);
    });
    program.section("on_host", on_host);
    program.section("written_before", written_before);
    program.section("waits", waits);
    program.section("refused", refused);
    program.section("streams", streams);
    program.section("boxes", boxes);
    program.section("refused_boxes", refused_boxes);
    program.section("between_contexts", [&] { between_contexts(device); });
    program.section("on_device", [&] { on_device(static_cast<size_t>(program.number("copies", 2000))); });
    return program.finish();
}
