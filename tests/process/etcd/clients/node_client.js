// Programs of npm's package `etcd3`, which test_node_etcd3.py runs: `node node_client.js SCENARIO PREFIX HOST:PORT...`.
// A scenario that fails ends the process with another exit code than 0, and says why on stderr.
'use strict';

const assert = require('node:assert/strict');
const { once } = require('node:events');
const {
  Etcd3, EtcdLockFailedError, EtcdLeaseInvalidError, EtcdUserNotFoundError, EtcdRoleExistsError, EtcdRoleNotFoundError,
  EtcdAuthenticationFailedError, EtcdPermissionDeniedError, 
} = require('etcd3');

const [scenario, prefix, ...hosts] = process.argv.slice(2);

// Collects what an emitter tells, so that a test can wait for the next of it.
function collected(emitter, ...names) {
  const told = [];
  const waiting = [];
  for (const name of names) {
    emitter.on(name, (...values) => {
      const item = [name, ...values];
      waiting.length ? waiting.shift()(item) : told.push(item);
    });
  }
  return () => new Promise(resolve => (told.length ? resolve(told.shift()) : waiting.push(resolve)));
}

const scenarios = {
  async keys(client) {
    const kv = client.namespace(prefix);
    assert.equal(await kv.get('k').string(), null);
    assert.equal(await kv.get('k').exists(), false);
    const put = await kv.put('k').value('one');
    const found = await kv.get('k').exec();
    assert.equal(found.kvs[0].mod_revision, put.header.revision);
    assert.equal(found.kvs[0].version, '1');
    const before = await kv.put('k').value(42).getPrevious();
    assert.equal(before.value.toString(), 'one');
    assert.equal(await kv.get('k').number(), 42);
    assert.equal(await kv.get('k').revision(put.header.revision).string(), 'one');
    await kv.put('empty').value('');
    assert.equal(await kv.get('empty').string(), '');
    await kv.put('bytes').value(Buffer.from([0, 255, 128]));
    assert.deepEqual(await kv.get('bytes').buffer(), Buffer.from([0, 255, 128]));
    const deleted = await kv.delete().key('k').getPrevious();
    assert.equal(deleted[0].value.toString(), '42');
    assert.equal((await kv.delete().key('k').exec()).deleted, '0');
  },

  async ranges(client) {
    const kv = client.namespace(prefix);
    for (const [name, value] of [['b', '1'], ['a', '2'], ['c', '0']]) await kv.put(name).value(value);
    assert.deepEqual(await kv.getAll().strings(), { a: '2', b: '1', c: '0' });
    assert.deepEqual(await kv.getAll().sort('Value', 'Ascend').keys(), ['c', 'b', 'a']);
    assert.deepEqual(await kv.getAll().sort('Create', 'Descend').limit(2).keys(), ['c', 'a']);
    assert.deepEqual(await kv.getAll().inRange({ start: 'b', end: 'c' }).keys(), ['b']);
    assert.equal(await kv.getAll().count(), 3);
    assert.equal((await kv.getAll().limit(1).exec()).more, true);
    assert.equal((await kv.delete().prefix('').exec()).deleted, '3');
  },

  async transactions(client) {
    const kv = client.namespace(prefix);
    const create = value => kv.if('k', 'Create', '==', 0).then(kv.put('k').value(value)).else(kv.get('k')).commit();
    const first = await create('one');
    assert.equal(first.succeeded, true);
    assert.equal(first.responses[0].response_put.header.revision, first.header.revision);
    const second = await create('two');
    assert.equal(second.succeeded, false);
    assert.equal(second.responses[0].response_range.kvs[0].value.toString(), 'one');
    const compared = await kv.if('k', 'Value', '==', 'one').and('k', 'Version', '<', 2)
      .and('k', 'Mod', '==', first.header.revision).and('absent', 'Version', '==', 0)
      .then(kv.delete().key('k'), kv.put('other').value('x')).commit();
    assert.equal(compared.succeeded, true);
    assert.equal(compared.responses[0].response_delete_range.deleted, '1');
    await assert.rejects(
      kv.if('k', 'Create', '==', 0).then(kv.put('k').value('1'), kv.put('k').value('2')).commit(),
      /etcdserver: duplicate key given in txn request/,
    );
  },

  // Software transactional memory: what one transaction has read must not have changed when it commits.
  async stm(client) {
    const kv = client.namespace(prefix);
    await kv.put('counter').value(0);
    const add = () => kv.stm({ retries: 50 }).transact(async tx => {
      const value = await tx.get('counter').number();
      await tx.put('counter').value(value + 1);
    });
    await Promise.all(Array.from({ length: 8 }, add));
    assert.equal(await kv.get('counter').number(), 8);
  },

  async watches(client) {
    const kv = client.namespace(prefix);
    const watcher = await kv.watch().prefix('').withPreviousKV().create();
    const next = collected(watcher, 'put', 'delete');
    await kv.put('k').value('one');
    await kv.put('k').value('two');
    await kv.delete().key('k');
    const [, first] = await next();
    assert.equal(first.key.toString(), 'k');
    assert.equal(first.value.toString(), 'one');
    const [, second, before] = await next();
    assert.equal(second.value.toString(), 'two');
    assert.equal(before.value.toString(), 'one');
    const [name, third, last] = await next();
    assert.equal(name, 'delete');
    assert.equal(last.value.toString(), 'two');
    assert.equal(Number(third.mod_revision), Number(first.mod_revision) + 2);

    const again = await kv.watch().key('k').startRevision(second.mod_revision).create();
    const nextAgain = collected(again, 'put', 'delete');
    assert.equal((await nextAgain())[1].value.toString(), 'two');
    assert.equal((await nextAgain())[0], 'delete');
    const puts = await kv.watch().prefix('').only('put').create();
    const nextPut = collected(puts, 'put', 'delete');
    await kv.delete().key('k');
    await kv.put('z').value('three');
    assert.equal((await nextPut())[1].value.toString(), 'three');
    await watcher.cancel();
    await again.cancel();
    await puts.cancel();
  },

  async compacted(client) {
    const kv = client.namespace(prefix);
    const revisions = [];
    for (const value of ['1', '2', '3']) revisions.push((await kv.put('k').value(value)).header.revision);
    await client.kv.compact({ revision: revisions[2], physical: true });
    await assert.rejects(
      kv.get('k').revision(revisions[0]).string(),
      /etcdserver: mvcc: required revision has been compacted/,
    );
  },

  async leases(client) {
    const lease = client.lease(600, { autoKeepAlive: false });
    await lease.put(`${prefix}k`).value('v');
    const id = await lease.grant();
    const told = await client.leaseClient.leaseTimeToLive({ ID: id, keys: true });
    assert.equal(told.grantedTTL, '600');
    assert.deepEqual(told.keys.map(String), [`${prefix}k`]);
    assert.equal((await lease.keepaliveOnce()).TTL, '600');
    await lease.revoke();
    assert.equal(await client.get(`${prefix}k`).string(), null);
    await assert.rejects(client.put(`${prefix}k`).value('v').lease(id).exec(), EtcdLeaseInvalidError);
  },

  // The client renews a lease by a stream, and is told when the lease is gone.
  async lostLease(client) {
    const lease = client.lease(3);
    const next = collected(lease, 'keepaliveSucceeded', 'lost');
    const id = await lease.grant();
    const [name, kept] = await next();
    assert.equal(name, 'keepaliveSucceeded');
    assert.equal(kept.TTL, '3');
    await client.leaseClient.leaseRevoke({ ID: id });
    let told = await next();
    while (told[0] === 'keepaliveSucceeded') told = await next();
    assert.equal(told[0], 'lost');
    assert.ok(told[1] instanceof EtcdLeaseInvalidError, told[1]);
  },

  async locks(client) {
    const name = `${prefix}lock`;
    const first = client.lock(name).ttl(60);
    await first.acquire();
    await assert.rejects(client.lock(name).ttl(60).acquire(), EtcdLockFailedError);
    await first.release();
    assert.equal(await client.lock(name).ttl(60).do(async () => 'done'), 'done');
    await client.lock(name).ttl(60).do(() => undefined);
  },

  async elections(client) {
    const election = client.namespace(prefix).election('president', 60);
    assert.equal(await election.leader(), undefined);
    const observer = await election.observe();
    const next = collected(observer, 'change');
    const ann = election.campaign('ann');
    await once(ann, 'elected');
    assert.equal(await election.leader(), 'ann');
    let seen = (await next())[1];
    while (seen !== 'ann') seen = (await next())[1];
    const bob = election.campaign('bob');
    await bob.getCampaignKey();
    await ann.proclaim('queen ann');
    while (seen !== 'queen ann') seen = (await next())[1];
    await ann.resign();
    await bob.wait();
    while (seen !== 'bob') seen = (await next())[1];
    await bob.resign();
    await observer.cancel();
  },

  async members(client) {
    const { members } = await client.cluster.memberList({});
    assert.equal(members.length, 3);
    const status = await client.maintenance.status();
    assert.ok(members.map(member => member.ID).includes(status.leader));
  },

  async users(client) {
    await client.user('root').create('pw');
    await client.role('root').create();
    await client.user('root').addRole('root');
    const few = client.role('few');
    await few.create();
    await assert.rejects(client.role('few').create(), EtcdRoleExistsError);
    await few.grant({ permission: 'Read', range: client.range({ prefix: 'app/' }) });
    assert.deepEqual((await few.permissions()).map(each => each.permission), ['Read']);
    await client.user('ann').create('secret');
    await client.user('ann').addRole('few');
    await assert.rejects(client.user('nobody').roles(), EtcdUserNotFoundError);
    await assert.rejects(client.user('ann').addRole('none'), EtcdRoleNotFoundError);
    assert.deepEqual((await client.getUsers()).map(user => user.name), ['ann', 'root']);
    await client.put('app/1').value('one');
    await client.auth.authEnable();
    await assert.rejects(client.get('app/1').string(), /etcdserver: user name is empty/);

    const { token } = await client.auth.authenticate({ name: 'ann', password: 'secret' });
    assert.ok(token);
    await assert.rejects(
      client.auth.authenticate({ name: 'ann', password: 'wrong' }), EtcdAuthenticationFailedError,
    );

    const ann = new Etcd3({ hosts, auth: { username: 'ann', password: 'secret' } });
    try {
      assert.equal(await ann.get('app/1').string(), 'one');
      await assert.rejects(ann.put('app/1').value('two').exec(), EtcdPermissionDeniedError);
      const watcher = await ann.watch().prefix('app/').startRevision('1').create();
      assert.equal((await collected(watcher, 'put')())[1].value.toString(), 'one');
      await watcher.cancel();
    } finally {
      ann.close();
    }
  },
};

async function main() {
  const client = new Etcd3({ hosts });
  try {
    await scenarios[scenario](client);
  } finally {
    client.close();
  }
}

main().then(
  () => process.exit(0),
  error => {
    console.error(error);
    process.exit(1);
  },
);
