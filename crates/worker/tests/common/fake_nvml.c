/* A stand-in for the library of the NVIDIA driver: as much of it as the worker asks for.
 *
 * DEVICES names a file with a line for each device, NAME|UUID|BYTES, or "lost". Without the file the
 * driver is not loaded. */

#include <stdio.h>
#include <string.h>

enum { OK = 0, INVALID_ARGUMENT = 2, DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15 };

struct device {
    char name[96];
    char uuid[96];
    unsigned long long bytes;
    int lost;
};

struct memory_v2 {
    unsigned int version;
    unsigned long long total, reserved, free, used;
};

/* Reads device `index` into `device` and says how many there are; -1 without a driver. */
static int read_devices(unsigned int index, struct device *device) {
    FILE *file = fopen(DEVICES, "r");
    char line[512];
    int count = 0;
    if (!file)
        return -1;
    while (fgets(line, sizeof line, file)) {
        if ((unsigned int)count == index) {
            memset(device, 0, sizeof *device);
            if (sscanf(line, "%95[^|]|%95[^|]|%llu", device->name, device->uuid, &device->bytes) != 3)
                device->lost = 1;
        }
        count++;
    }
    fclose(file);
    return count;
}

static int device_of(void *handle, struct device *device) {
    unsigned int index = (unsigned int)((unsigned long)handle - 1);
    int count = read_devices(index, device);
    if (count < 0)
        return DRIVER_NOT_LOADED;
    if (index >= (unsigned int)count)
        return INVALID_ARGUMENT;
    return device->lost ? GPU_IS_LOST : OK;
}

int nvmlInit_v2(void) {
    struct device device;
    return read_devices(0, &device) < 0 ? DRIVER_NOT_LOADED : OK;
}

int nvmlShutdown(void) { return OK; }

int nvmlSystemGetDriverVersion(char *version, unsigned int length) {
    snprintf(version, length, "550.54.15");
    return OK;
}

int nvmlDeviceGetCount_v2(unsigned int *count) {
    struct device device;
    int found = read_devices(0, &device);
    if (found < 0)
        return DRIVER_NOT_LOADED;
    *count = (unsigned int)found;
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **handle) {
    struct device device;
    *handle = (void *)((unsigned long)index + 1);
    return device_of(*handle, &device);
}

int nvmlDeviceGetName(void *handle, char *name, unsigned int length) {
    struct device device;
    int status = device_of(handle, &device);
    if (status == OK)
        snprintf(name, length, "%s", device.name);
    return status;
}

int nvmlDeviceGetUUID(void *handle, char *uuid, unsigned int length) {
    struct device device;
    int status = device_of(handle, &device);
    if (status == OK)
        snprintf(uuid, length, "%s", device.uuid);
    return status;
}

int nvmlDeviceGetMemoryInfo_v2(void *handle, struct memory_v2 *memory) {
    struct device device;
    int status = device_of(handle, &device);
    if (status == OK) {
        memory->total = device.bytes;
        memory->reserved = 0;
        memory->free = device.bytes;
        memory->used = 0;
    }
    return status;
}
