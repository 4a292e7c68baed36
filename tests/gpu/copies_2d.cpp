#include <algorithm>
#include <cstdint>

#include "tests/gpu/copies.h"
#include "tests/gpu/driver.h"

namespace gpupool::programs {

namespace {

struct Plane {
    size_t pitch = 0;
    size_t height = 0;
    std::vector<uint8_t> host;
    CUdeviceptr device = 0;

    Plane(size_t plane_pitch, size_t plane_height, uint8_t seed) : pitch(plane_pitch), height(plane_height) {
        host.resize(pitch * height);
        for (size_t i = 0; i < host.size(); i++) {
            host[i] = static_cast<uint8_t>(i * 13 + (i >> 7) + seed);
        }
        DRIVER_OK(cuMemAlloc(&device, host.size()));
        upload();
    }
    ~Plane() { cuMemFree(device); }
    Plane(const Plane&) = delete;
    Plane& operator=(const Plane&) = delete;

    void upload() { DRIVER_OK(cuMemcpyHtoD(device, host.data(), host.size())); }
    bool device_equals_host() const {
        std::vector<uint8_t> back(host.size());
        DRIVER_OK(cuMemcpyDtoH(back.data(), device, back.size()));
        return back == host;
    }
};

struct Rectangle {
    size_t from_x, from_y, to_x, to_y, width, height;
};

void copy_on_host(const Plane& from, Plane& to, const Rectangle& part) {
    for (size_t y = 0; y < part.height; y++) {
        std::copy_n(from.host.begin() + (part.from_y + y) * from.pitch + part.from_x, part.width,
                    to.host.begin() + (part.to_y + y) * to.pitch + part.to_x);
    }
}

CUDA_MEMCPY2D describe(Plane& from, bool from_device, Plane& to, bool to_device, const Rectangle& part) {
    CUDA_MEMCPY2D copy{};
    copy.srcMemoryType = from_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
    copy.srcHost = from.host.data();
    copy.srcDevice = from.device;
    copy.srcPitch = from.pitch;
    copy.srcXInBytes = part.from_x;
    copy.srcY = part.from_y;
    copy.dstMemoryType = to_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
    copy.dstHost = to.host.data();
    copy.dstDevice = to.device;
    copy.dstPitch = to.pitch;
    copy.dstXInBytes = part.to_x;
    copy.dstY = part.to_y;
    copy.WidthInBytes = part.width;
    copy.Height = part.height;
    return copy;
}

enum class Form { plain, unaligned, asynchronous };

CUresult run(const CUDA_MEMCPY2D& copy, Form form) {
    switch (form) {
        case Form::plain: return cuMemcpy2D(&copy);
        case Form::unaligned: return cuMemcpy2DUnaligned(&copy);
        case Form::asynchronous: break;
    }
    const CUresult result = cuMemcpy2DAsync(&copy, nullptr);
    return result == CUDA_SUCCESS ? cuStreamSynchronize(nullptr) : result;
}

void copy_all_ways(Form form, const char* name, const Rectangle& part) {
    {
        Plane from(128, 40, 1), to(160, 36, 2);
        DRIVER_OK(run(describe(from, false, to, true, part), form));
        copy_on_host(from, to, part);
        check(to.device_equals_host(), "%s, host to device, %zux%zu", name, part.width, part.height);
    }
    {
        Plane from(128, 40, 3), to(160, 36, 4);
        DRIVER_OK(run(describe(from, true, to, true, part), form));
        copy_on_host(from, to, part);
        check(to.device_equals_host(), "%s, device to device, %zux%zu", name, part.width, part.height);
    }
    {
        Plane from(128, 40, 5), to(160, 36, 6);
        DRIVER_OK(run(describe(from, true, to, false, part), form));
        const std::vector<uint8_t> received = to.host;
        to.host.clear();
        Plane expected(160, 36, 6);
        copy_on_host(from, expected, part);
        check(received == expected.host, "%s, device to host, %zux%zu", name, part.width, part.height);
    }
    {
        Plane from(128, 40, 7), to(160, 36, 8);
        DRIVER_OK(run(describe(from, false, to, false, part), form));
        Plane expected(160, 36, 8);
        copy_on_host(from, expected, part);
        check(to.host == expected.host, "%s, host to host, %zux%zu", name, part.width, part.height);
    }
}

struct Array {
    CUarray handle = nullptr;
    Array(size_t width, size_t height) {
        CUDA_ARRAY_DESCRIPTOR descriptor{width, height, CU_AD_FORMAT_UNSIGNED_INT8, 4};
        DRIVER_OK(cuArrayCreate(&handle, &descriptor));
    }
    ~Array() { cuArrayDestroy(handle); }
    Array(const Array&) = delete;
    Array& operator=(const Array&) = delete;
};

}  // namespace

void copy_two_dimensions() {
    const Rectangle aligned{0, 0, 0, 0, 64, 20}, inner{5, 3, 17, 2, 71, 30}, line{1, 0, 2, 7, 3, 1};
    for (const Rectangle& part : {aligned, inner, line}) {
        copy_all_ways(Form::plain, "cuMemcpy2D", part);
        copy_all_ways(Form::unaligned, "cuMemcpy2DUnaligned", part);
        copy_all_ways(Form::asynchronous, "cuMemcpy2DAsync", part);
    }
    Plane from(128, 40, 9), to(160, 36, 10);
    CUDA_MEMCPY2D nothing = describe(from, false, to, true, {0, 0, 0, 0, 0, 0});
    check_result(cuMemcpy2D(&nothing), CUDA_SUCCESS, "a two-dimensional copy of nothing");
    check(to.device_equals_host(), "which changed nothing");
}

void memset_two_dimensions() {
    constexpr size_t kWidth = 30, kHeight = 11;
    const auto fill = [](Plane& plane, size_t start, size_t unit, uint32_t value) {
        for (size_t y = 0; y < kHeight; y++) {
            for (size_t x = 0; x < kWidth * unit; x++) {
                plane.host[start + y * plane.pitch + x] = static_cast<uint8_t>(value >> 8 * (x % unit));
            }
        }
    };
    for (const bool asynchronous : {false, true}) {
        const char* form = asynchronous ? "asynchronous" : "synchronous";
        Plane bytes(160, 20, 1), halves(160, 20, 2), words(160, 20, 3);
        if (asynchronous) {
            DRIVER_OK(cuMemsetD2D8Async(bytes.device + 323, 160, 0xd1, kWidth, kHeight, nullptr));
            DRIVER_OK(cuMemsetD2D16Async(halves.device + 322, 160, 0xd1d2, kWidth, kHeight, nullptr));
            DRIVER_OK(cuMemsetD2D32Async(words.device + 324, 160, 0xd1d2d3d4, kWidth, kHeight, nullptr));
            DRIVER_OK(cuStreamSynchronize(nullptr));
        } else {
            DRIVER_OK(cuMemsetD2D8(bytes.device + 323, 160, 0xd1, kWidth, kHeight));
            DRIVER_OK(cuMemsetD2D16(halves.device + 322, 160, 0xd1d2, kWidth, kHeight));
            DRIVER_OK(cuMemsetD2D32(words.device + 324, 160, 0xd1d2d3d4, kWidth, kHeight));
        }
        fill(bytes, 323, 1, 0xd1);
        fill(halves, 322, 2, 0xd1d2);
        fill(words, 324, 4, 0xd1d2d3d4);
        check(bytes.device_equals_host(), "%s memset of a rectangle of bytes", form);
        check(halves.device_equals_host(), "%s memset of a rectangle of 16-bit words", form);
        check(words.device_equals_host(), "%s memset of a rectangle of 32-bit words", form);
    }
}

void copy_arrays() {
    constexpr size_t kWidth = 32, kHeight = 18, kRow = kWidth * 4;
    const Array first(kWidth, kHeight), second(kWidth, kHeight);
    Plane plane(kRow, kHeight, 21), back(kRow, kHeight, 22);

    CUDA_MEMCPY2D in = describe(plane, false, plane, false, {0, 0, 0, 0, kRow, kHeight});
    in.dstMemoryType = CU_MEMORYTYPE_ARRAY;
    in.dstArray = first.handle;
    DRIVER_OK(cuMemcpy2D(&in));
    CUDA_MEMCPY2D across{};
    across.srcMemoryType = across.dstMemoryType = CU_MEMORYTYPE_ARRAY;
    across.srcArray = first.handle;
    across.dstArray = second.handle;
    across.WidthInBytes = kRow;
    across.Height = kHeight;
    DRIVER_OK(cuMemcpy2D(&across));
    CUDA_MEMCPY2D out = describe(back, false, back, true, {0, 0, 0, 0, kRow, kHeight});
    out.srcMemoryType = CU_MEMORYTYPE_ARRAY;
    out.srcArray = second.handle;
    DRIVER_OK(cuMemcpy2D(&out));
    back.host = plane.host;
    check(back.device_equals_host(), "host to array to array to device");

    // The copies by offset are for one-dimensional arrays.
    const Array line(kWidth, 0), second_line(kWidth, 0);
    std::vector<uint8_t> from_device(kRow), from_array(kRow);
    DRIVER_OK(cuMemcpyHtoA(line.handle, 0, plane.host.data() + kRow, kRow));
    DRIVER_OK(cuMemcpyAtoA(second_line.handle, 0, line.handle, 0, kRow));
    DRIVER_OK(cuMemcpyAtoD(back.device, second_line.handle, 0, kRow));
    DRIVER_OK(cuMemcpyDtoH(from_device.data(), back.device, kRow));
    check(std::equal(from_device.begin(), from_device.end(), plane.host.begin() + kRow),
          "a line from the host through two arrays to the device");
    DRIVER_OK(cuMemcpyDtoA(line.handle, 16, plane.device, 64));
    DRIVER_OK(cuMemcpyAtoH(from_array.data(), line.handle, 0, kRow));
    check(std::equal(from_array.begin() + 16, from_array.begin() + 80, plane.host.begin()) &&
              std::equal(from_array.begin(), from_array.begin() + 16, plane.host.begin() + kRow),
          "a part of a line from the device, and out again");
    CUDA_ARRAY_DESCRIPTOR descriptor{};
    DRIVER_OK(cuArrayGetDescriptor(&descriptor, first.handle));
    check(descriptor.Width == kWidth && descriptor.Height == kHeight && descriptor.NumChannels == 4,
          "an array's description");
}

}  // namespace gpupool::programs
