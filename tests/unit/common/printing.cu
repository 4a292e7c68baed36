// A kernel that prints, for the test that recognizes such images.
#include <cstdio>

__global__ void printing(int value) {
    printf("%d\n", value);
}
